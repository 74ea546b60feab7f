"""A run is scored again in real sandboxes: unchanged, by a stricter reward, and with another seed."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from aiohttp import web
from endpoint_service import says, serving
from lease_service import lease_service
from ports import free_port
from recounting import SCRIPT
from role_keys import TO_BROKER

from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.document import Json
from headway_api.records import Purpose
from headway_api.seeds import seed
from headway_api.status import ResolvedCandidate
from headway_api.store import FileStore
from headway_coordinator.dataset import Order
from headway_coordinator.spool import decode, encode

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "sop-quickstart"
MAIN = ROOT / "tests" / "support" / "eval_coordinator_main.py"
sys.path.insert(0, str(EXAMPLE))

import environment as desk  # noqa: E402

DESKS = '''
from environment import USAGES, RefundDesk, pick
from headway_sandbox.environment import Reward, tool


class SeededDesk(RefundDesk):
    """The seed decides how used an item is."""

    def reset(self, row, seed):
        self.seed = str(seed)
        return super().reset(row, seed)

    @tool
    def get_usage(self, case_id: str) -> dict[str, str]:
        """How used it is."""
        return {"usage": pick(USAGES, "usage", case_id, self.seed)}


class StrictDesk(SeededDesk):
    """Pays nothing for a part."""

    def reward(self, transcript):
        own = super().reward(transcript)
        return Reward(float(own.value == 1.0), own.metrics)
'''
CASES = ("amber-otter", "brisk-crane", "calm-panda")
WRONG = CASES[1::2]
"""Cases in which the candidate's item is wrong."""
ROWS = [{"prompt": f"Handle case {case}.", "case_id": case} for case in CASES]
TRIES, SEED, OTHER_SEED, EPOCH = 2, 3, 5, 2
PART = 5 / 12
"""Reward if the procedure and all fields except one of five are right."""


async def clerk(request: web.Request, body: Json) -> web.StreamResponse:
    """A candidate that follows the procedure, and gets one field wrong in some cases."""
    asked = re.search(r"Handle case (\S+)\.", json.dumps(body["messages"]))
    if asked is None:  # the coordinator's test request
        return await says("Yes.")(request, body)
    case = asked[1]
    calls, made = desk.expected_calls(case), sum(each["role"] == "tool" for each in body["messages"])
    if made < len(calls):
        name, key = calls[made]
        argument = "item" if name == "get_stock" else "case_id"
        return await says("", (name, json.dumps({argument: key})))(request, body)
    answer = desk.expected_answer(case) | ({"item": "none"} if case in WRONG else {})
    return await says(f"<final_output>{json.dumps(answer)}</final_output>")(request, body)


@dataclass
class Evaluated:
    """A finished evaluation of one candidate."""

    layout: Layout
    result: Json
    report: Json
    lines: list[Json]

    @property
    def rewards(self) -> dict[str, list[float]]:
        """Rewards of the tries by case."""
        return {
            case: [line["reward"] for line in self.lines if line["row"] == row]
            for row, case in enumerate(CASES)
        }


def job_in(folder: Path, entrypoint: str, candidate: Json, job_seed: int) -> EvalConfig:
    """The configuration of a job, with its environment and rows in a new folder."""
    folder.mkdir()
    shutil.copy(EXAMPLE / "environment.py", folder)
    (folder / "desks.py").write_text(DESKS)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    spec = {
        "seed": job_seed,
        "candidates": [candidate],
        "data": {"uri": f"file://{folder}/rows.jsonl"},
        "environment": {"image": "i", "entrypoint": entrypoint},
        "evaluation": {"groupSize": TRIES, "sampling": {"temperature": 1.0}},
        "rollout": {"maxConcurrency": 2, "timeoutSeconds": 60, "maxRetries": 0},
        "output": {"uri": f"file://{folder}/runs"},
    }
    kind = "Rescore" if "rescore" in candidate else "Endpoint"
    resolved = [ResolvedCandidate(name=candidate["name"], kind=kind)]
    of = {"name": "desk", "namespace": "ns", "uid": "0123456789abcdef", "spec": spec, "candidates": resolved}
    job = EvalConfig.model_validate(of)
    (folder / "job.json").write_text(job.model_dump_json(by_alias=True))
    return job


async def evaluated(folder: Path, entrypoint: str, candidate: Json, job_seed: int = SEED) -> Evaluated:
    """Evaluate the candidate to its end, with a coordinator's process and real sandboxes."""
    job = job_in(folder, entrypoint, candidate, job_seed)
    layout = Layout(job.spec.output.uri, job.namespace, job.name, job.uid)
    async with lease_service(folder, entrypoint, TO_BROKER) as leases:
        run = {"broker_url": leases.url, "suite_broker_urls": {}}
        (folder / "run.json").write_text(json.dumps(run | {"port": free_port(), "gateway_port": free_port()}))
        command = [sys.executable, str(MAIN), str(folder)]
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
            code = await process.wait()
        assert code == 0, (folder / "log").read_text()
        assert leases.total == 1 + len(ROWS) * TRIES, "one sandbox of the preflight, and one for each try"
    [result] = json.loads((folder / "status.json").read_text())["results"]
    await recounted(layout)
    store = FileStore()
    lines = pq.read_table(io.BytesIO(store.get(layout.results))).to_pylist()
    return Evaluated(layout, result, json.loads(store.get(layout.report)), lines)


async def recounted(layout: Layout) -> None:
    """Recount every number of the report."""
    files = [uri.removeprefix("file://") for uri in (layout.results, layout.report)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), *files, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def differing(lines: Iterable[Json]) -> dict[str, int]:
    """How many tool answers of each case differ from the recorded ones, over all tries."""
    found = dict.fromkeys(CASES, 0)
    for line in lines:
        found[CASES[line["row"]]] += line["differing_answers"]
    return found


def usage_of(
    case: str, job_seed: int, purpose: Purpose = Purpose.EVALUATION, position: int | None = None
) -> str:
    """What the desk's tool answers in a job with this seed."""
    place = CASES.index(case) if position is None else position
    drawn = seed(job_seed, "environment", purpose, place)
    return desk.pick(desk.USAGES, "usage", case, str(drawn))


def trained_on(before: Layout, folder: Path) -> dict[str, int]:
    """Store a run's episodes as epoch `EPOCH` of a training job that ended before its last row.

    Returns the place of each case in the order of training.
    """
    store, layout = FileStore(), Layout(f"file://{folder}", "ns", "trained", "uid")
    order, rows = Order(rows=len(CASES), seed=SEED), len(CASES)
    slots = [order.slot(position) for position in range(EPOCH * rows, (EPOCH + 1) * rows - 1)]
    for slot in slots:
        group = decode(store.get(before.evaluation_group("clerk", f"e-clerk-{slot.row:06d}")))
        group_id = slot.group_id(Purpose.TRAIN)
        episodes = [
            each.model_copy(update={"group_id": group_id, "episode_id": f"{group_id}-{each.index}-0"})
            for each in group.episodes
        ]
        kept = {"group_id": group_id, "purpose": Purpose.TRAIN, "epoch": slot.epoch, "candidate": None}
        store.put(
            layout.train_group(group_id), encode(group.model_copy(update=kept | {"episodes": episodes}))
        )
    return {CASES[slot.row]: slot.position for slot in slots}


async def test_an_epoch_of_training_is_scored_again(tmp_path: Path) -> None:
    async with serving(clerk) as service:
        sampled = {"name": "clerk", "endpoint": {"url": service.url, "model": "m"}}
        before = await evaluated(tmp_path / "run", "desks:SeededDesk", sampled)
    places = trained_on(before.layout, tmp_path / "kept")
    uri = Layout(f"file://{tmp_path / 'kept'}", "ns", "trained", "uid").root
    again = {"name": "again", "rescore": {"uri": uri, "epoch": EPOCH}}
    found = await evaluated(tmp_path / "again", "desks:SeededDesk", again)
    assert found.result["state"] == "Complete"
    [missing] = set(CASES) - places.keys()
    for case in CASES:
        assert found.rewards[case] == ([None] * TRIES if case == missing else before.rewards[case])
    assert found.result["infraErrors"] == TRIES
    assert len({line["episode_id"] for line in found.lines}) == len(CASES) * TRIES, "none is retried"
    changed = {
        case: usage_of(case, SEED) != usage_of(case, SEED, Purpose.TRAIN, place)
        for case, place in places.items()
    }
    assert set(changed.values()) == {True, False}, "choose an epoch that changes the usage of some cases"
    assert differing(found.lines) == {case: TRIES * changed.get(case, False) for case in CASES}


async def test_a_run_is_scored_again_in_real_sandboxes(tmp_path: Path) -> None:
    async with serving(clerk) as service:
        sampled = {"name": "clerk", "endpoint": {"url": service.url, "model": "m"}}
        before = await evaluated(tmp_path / "run", "desks:SeededDesk", sampled)
        asked = len(service.bodies)
        again = {"name": "again", "rescore": {"uri": before.layout.root, "candidate": "clerk"}}
        same = await evaluated(tmp_path / "same", "desks:SeededDesk", again)
        strict = await evaluated(tmp_path / "strict", "desks:StrictDesk", again)
        other = await evaluated(tmp_path / "other", "desks:SeededDesk", again, OTHER_SEED)
        assert len(service.bodies) == asked, "nobody samples"
    assert before.rewards == {case: [pytest.approx(PART) if case in WRONG else 1.0] * TRIES for case in CASES}
    assert differing(before.lines) == dict.fromkeys(CASES, 0)

    assert same.rewards == before.rewards
    assert differing(same.lines) == dict.fromkeys(CASES, 0)
    assert "message" not in same.result
    for run in (same, strict, other):
        assert run.result["state"] == "Complete"
        assert {line["sampled_by"] for line in run.lines} == {"nobody"}
        assert {each["class"] for line in run.lines for each in line["usage"]} == {"sandboxSeconds"}
        assert run.report["usage"]["total"].keys() == {"sandboxSeconds"}

    assert strict.rewards == {case: [0.0 if case in WRONG else 1.0] * TRIES for case in CASES}
    assert differing(strict.lines) == dict.fromkeys(CASES, 0)

    changed = {case: usage_of(case, SEED) != usage_of(case, OTHER_SEED) for case in CASES}
    assert set(changed.values()) == {True, False}, "choose seeds that change the usage of some cases"
    assert differing(other.lines) == {case: TRIES * changed[case] for case in CASES}
    count = TRIES * sum(changed.values())
    assert other.report["candidates"][0]["differingAnswers"] == count
    assert other.result["message"].startswith(
        f"calls that the tools answered otherwise than in the run: {count}; write spec.seed and spec.data"
    )
    assert other.rewards == before.rewards, "the desk does not judge by the usage that its tool reported"
