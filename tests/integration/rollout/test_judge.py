"""A judge that a real vLLM serves behind a token, and that is killed while episodes are judged.

Its model has random weights. Its answers are noise that vLLM and the coordinator constrain by a schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import judge_rig
import pytest
import rollout_server
from role_keys import TO_JUDGE
from rollout_server import RolloutServer, kill
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.records import EpisodeRecord, Outcome, UsageClass
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.episode import Task
from headway_coordinator.ledger.events import of_group

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

VERDICT = {"enum": ["good", "bad"]}
REWARD = f"float(self.judge('style', [user(str(transcript.row['case']))], {VERDICT}) == 'good')"


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


def started(folder: Path, base: Path) -> RolloutServer:
    """Start the server of a judge.

    The job trains another model, for which this server does not look.
    """
    model = {"base": f"file://{base}", "dtype": "float32", "contextLength": 512}
    judges = [{"name": "style", "model": model, "concurrency": 4}]
    return RolloutServer(folder, folder / "nothing", judge="style", judges=judges)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[RolloutServer]:
    """A real judge, which the last test kills."""
    with started(tmp_path_factory.mktemp("judge") / "server", tiny) as server:
        server.wait_ready()
        yield server


def billed(*found: groups.GroupRecord) -> list[float]:
    events = [event for group in found for event in of_group(group)]
    return [
        sum(event.quantity for event in events if event.usage_class is name)
        for name in (UsageClass.JUDGE_PROMPT, UsageClass.JUDGE_SAMPLE)
    ]


async def test_episodes_are_judged_and_billed_as_the_server_counts(
    server: RolloutServer, tok: Any, tmp_path: Path
) -> None:
    key(tmp_path)
    async with AsyncExitStack() as stack:
        of = spec(server)
        judges = await stack.enter_async_context(judge_rig.judges(tmp_path, of))
        rig = await stack.enter_async_context(judge_rig.rig(tok, tmp_path, judges, timeout=120.0))
        before = server.spent_on_requests()
        found = [await judge_rig.ran(rig, judge_rig.plan(size=2, reward=REWARD, case=n)) for n in range(3)]
        spent = [after - start for after, start in zip(server.spent_on_requests(), before, strict=True)]
        again = await judge_rig.ran(rig, judge_rig.plan(size=2, reward=REWARD, case=0))
        assert server.spent_on_requests() == [start + more for start, more in zip(before, spent, strict=True)]
    assert rig.causes == []
    assert all(episode.reward in (0.0, 1.0) for group in found for episode in group.episodes)
    assert billed(*found) == spent
    assert min(spent) > 0
    assert billed(again) == [0, 0], "it was answered before"
    assert [e.reward for e in again.episodes] == [e.reward for e in found[0].episodes]


async def test_a_judge_killed_in_the_middle_costs_retries_and_no_zero(
    server: RolloutServer, tok: Any, tmp_path: Path, tiny: Path
) -> None:
    key(tmp_path)
    async with AsyncExitStack() as stack:
        judges = await stack.enter_async_context(judge_rig.judges(tmp_path, spec(server, cache=False)))
        rig = await stack.enter_async_context(judge_rig.rig(tok, tmp_path, judges, timeout=120.0))
        killed = asyncio.Event()

        async def run(task: Task) -> EpisodeRecord:
            record = await rig.run(task)
            if not killed.is_set():
                kill(server.front_process())
                killed.set()
            return record

        def restarted() -> RolloutServer:
            """Start another server at the address of the first one."""
            server.process.wait(60)
            ports = iter([server.engine_port, rollout_server.free_port(), rollout_server.free_port()])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(rollout_server, "free_port", lambda: next(ports))
                return started(tmp_path / "again", tiny)

        plan = judge_rig.plan(size=4, reward=REWARD, case="any")
        running = asyncio.create_task(
            groups.run(plan, run, AdaptiveSemaphore(1), start_number=0, max_retries=1)
        )
        await killed.wait()
        stack.enter_context(await asyncio.to_thread(restarted))
        group = await running
    assert [episode.outcome for episode in group.episodes] == [Outcome.COMPLETED] * 4
    assert all(episode.reward in (0.0, 1.0) for episode in group.episodes)
    assert group.discarded, "those that were judged when it was killed"
    assert {episode.outcome for episode in group.discarded} == {Outcome.INFRA_ERROR}
    assert all(episode.reward is None and "judge style" in str(episode.error) for episode in group.discarded)
    assert {cause.field for cause in rig.causes if cause.field} <= {
        "spec.judges[style]",
        "spec.judges[style].timeoutSeconds",
    }


def key(folder: Path) -> None:
    (folder / "tokens/style").mkdir(parents=True)
    (folder / "tokens/style/token").write_text(TO_JUDGE)


def spec(server: RolloutServer, **other: Any) -> Any:
    secret = {"secretRef": {"name": "judge-key"}, "timeoutSeconds": 5, "maxTokens": 32}
    endpoint = {"url": f"{server.url}/v1", "model": "base"}
    return judge_rig.spec(**{"endpoint": endpoint, **secret, **other})
