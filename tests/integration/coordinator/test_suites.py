"""Tasks of Inspect AI beside the job's own rows: real sandboxes, real Inspect AI, a coordinator's process."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import odd_tasks
import pyarrow.parquet as pq
import pytest
from gateway_rig import GatewayRig, a_task, gateway_rig, token_truth
from inspect_ai.log import read_eval_log
from lease_service import lease_service
from recounting import SCRIPT
from role_keys import TO_BROKER
from scripted_model import ANSWER, CALL
from suite_rig import SUITE, SuiteRig, suite_rig

from headway_api.exits import PERMANENT
from headway_api.records import EpisodeRecord, Outcome
from headway_api.spec.suite import ENTRYPOINT, PROGRAM
from headway_api.store import FileStore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
LIMIT, ROWS = 3, 2


def table(rig: SuiteRig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(FileStore().get(rig.layout.results))).to_pylist()
    return found


def recounted(rig: SuiteRig, folder: Path) -> None:
    """Check that the recount agrees with report, final status and last scrape, and detects a change."""
    (folder / "final.json").write_text(json.dumps({"status": rig.status()}))
    files = [str(uri).removeprefix("file://") for uri in (rig.layout.results, rig.layout.report)]
    command = [sys.executable, str(SCRIPT), *files, "--status", str(folder / "final.json"), "--metrics"]

    def recount(metrics: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, str(metrics)], capture_output=True, text=True, timeout=60, check=False
        )

    scraped = folder / "metrics.txt"
    done = recount(scraped)
    assert done.returncode == 0, done.stdout + done.stderr
    value = re.compile(
        rf'^(\w+eval_measure{{.*"good".*measure="external_score".*"{SUITE}".*}}) 1.0$', re.MULTILINE
    )
    text, changed = value.subn(r"\1 0.9", scraped.read_text())
    assert changed == 1, scraped.read_text()
    (folder / "wrong.txt").write_text(text)
    wrong = f"/metrics measure good {SUITE} external_score : the report has 0.9, the recount 1.0\n"
    assert recount(folder / "wrong.txt").stdout == wrong


async def one_sample(tok: Any, folder: Path, task: str, *texts: str) -> tuple[GatewayRig, EpisodeRecord]:
    """Play a sample of `odd_tasks` with a model whose turns are `texts`."""
    shutil.copy(odd_tasks.__file__, folder)
    config = {"task": f"odd_tasks.py@{task}", "args": {}}
    async with (
        gateway_rig(tok, *texts) as rig,
        lease_service(folder, ENTRYPOINT, TO_BROKER, config=config) as leases,
    ):
        agent = rig.sandboxed_agent(sys.executable, *PROGRAM[1:])
        return rig, await rig.episodes(agent, leases, timeout=120.0).run(a_task({"sample": 0}))


async def test_inspect_tools_are_called_and_every_token_is_the_models(tok: Any, tmp_path: Path) -> None:
    rig, record = await one_sample(tok, tmp_path, "metals", CALL, ANSWER)
    assert (record.outcome, record.error) == (Outcome.COMPLETED, None)
    assert (record.reward, record.score, record.metrics) == (1.0, 1.0, {"includes": 1.0})
    token_truth(rig, record)
    assert [message["role"] for message in record.messages] == ["user", "assistant", "tool", "assistant"]
    assert record.messages[2]["content"] == "x is gold"
    assert [turn.delivered for turn in record.turns] == [True, True]


async def test_a_sample_without_a_score_is_not_an_answer(tok: Any, tmp_path: Path) -> None:
    _, record = await one_sample(tok, tmp_path, "broken", ANSWER)
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert record.error is not None
    assert "Inspect AI has no score for the sample" in record.error
    assert "the solver broke on purpose" in record.error


async def test_a_limit_above_the_samples_is_refused_at_once(tmp_path: Path) -> None:
    async with suite_rig(tmp_path, {"good": {}}, limit=49) as rig:
        assert await (await rig.coordinator()).wait() == PERMANENT, rig.log
        preflight = rig.status()["preflight"]
        assert rig.endpoints["good"].bodies == []
    assert preflight["state"] == "Failed"
    [failed] = [check for check in preflight["checks"] if not check["passed"]]
    assert (failed["name"], failed["field"]) == ("Suite sums", "spec.suites[sums].limit")
    assert "49 is more than the task's 48 samples; write at most 48" in failed["message"]
    assert "spec.suites[sums].limit" in rig.log.splitlines()[-1]


@pytest.mark.ci
async def test_report_status_and_metrics_match_a_recount(tmp_path: Path) -> None:
    """The recount covers own rows and a suite, and the process's metrics at its final status."""
    async with suite_rig(
        tmp_path, {"good": {}, "bad": {"+": 1, "-": 1, "*": 1}}, limit=LIMIT, rows=ROWS
    ) as rig:
        assert await (await rig.coordinator()).wait() == 0, rig.log
        assert (tmp_path / "loaded").read_text() == "once\n"
        assert "report" in rig.status()["artifacts"], "the last scrape is of the moment of the final status"
        await asyncio.to_thread(recounted, rig, tmp_path)


@pytest.mark.long
async def test_a_killed_coordinator_repeats_no_sample_of_a_suite(tmp_path: Path) -> None:
    wrong = {"good": {}, "bad": {"+": 1, "-": 1, "*": 1}}
    async with suite_rig(tmp_path, wrong, limit=LIMIT, rows=ROWS) as rig:
        first = await rig.coordinator()
        async with asyncio.timeout(300):
            while sum(int(name.rpartition("-")[2]) >= ROWS for name in rig.groups()) < 1:
                assert first.returncode is None, rig.log
                await asyncio.sleep(0.2)
        first.kill()
        await first.wait()
        durable = set(rig.groups())
        leases = rig.suite.total
        assert await (await rig.coordinator()).wait() == 0, rig.log
        # The preflight has a sandbox, and so has each sample that was not durable.
        left = len(wrong) * LIMIT - sum(int(name.rpartition("-")[2]) >= ROWS for name in durable)
        assert rig.suite.total - leases == 1 + left
        assert Counter(rig.groups()) == Counter(
            f"e-{name}-{at:06d}" for name in wrong for at in range(ROWS + LIMIT)
        )
        results = {each["name"]: each for each in rig.status()["results"]}
        assert {name: each["rows"] for name, each in results.items()} == dict.fromkeys(wrong, ROWS)
        progress = rig.status()["progress"]
        assert (progress["groups"], progress["ofGroups"]) == (2 * (ROWS + LIMIT), 2 * (ROWS + LIMIT))
        estimate, cost = rig.status()["estimate"], rig.status()["usage"]["cost"]
        assert estimate["low"] == estimate["likely"] == estimate["high"] == cost
        [made] = rig.report()["estimate"]["made"]
        assert (made["basis"], rig.report()["estimate"]["actual"]) == ("Data", cost)
        scores = {name: each["suites"][0]["score"].split()[0] for name, each in results.items()}
        assert scores == {"good": "1.00", "bad": "0.00"}
        lines = table(rig)
        assert {line["task"] for line in lines if line["suite"]} == {SUITE}
        assert [line["reward"] for line in lines if line["suite"] and line["candidate"] == "good"] == [
            1.0
        ] * LIMIT
        assert {name for line in lines if line["suite"] for name, _ in line["metrics"]} == {
            "match",
            "includes",
        }
        folder = Path(rig.layout.log("good").removeprefix("file://"))
        log = await asyncio.to_thread(read_eval_log, str(folder))
        samples = {str(sample.id): sample for sample in log.samples or []}
        assert set(samples) == {"0", "1", "sums-0", "sums-1", "sums-2"}
        assert "What is" in str(samples["sums-0"].messages[1].content)
        report = rig.report()
        measures = next(each for each in report["candidates"] if each["name"] == "bad")["measures"]
        assert measures[SUITE]["external_score"]["value"] == 0.0
        assert measures["all"]["external_score"]["rows"] == ROWS
        assert report["suites"][SUITE]["differences"]["external_score"]["bad"]["value"] == -1.0
