"""The preflight's scripts whose reward asks a judge: a judge that is down, and the cost of answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import judge_rig
import pytest
from endpoint_service import Service, fails, says, silent
from endpoint_service import serving as endpoint
from job_rig import spec
from lease_service import lease_service

from headway_analysis.billing.segments import total
from headway_analysis.preflight.evidence import Script
from headway_api.artifacts import Layout
from headway_api.records import Judgement, UsageClass
from headway_api.store import FileStore
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.judges import judge as asking
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.preflight.scripted import Player
from headway_coordinator.sandboxes import Broker

GRADE = says('{"grade": 0.5}')


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "backoff", lambda tries: 0.0)


@dataclass
class Rig:
    player: Player
    ledger: Ledger
    billed: list[str] = field(default_factory=list)
    waited: list[str] = field(default_factory=list)
    """The status messages about scripts that wait."""

    @property
    def tokens(self) -> float:
        """Judge tokens on the bill, as a ledger loaded from the store counts them."""
        found = total(self.ledger.days)
        return found[UsageClass.JUDGE_PROMPT] + found[UsageClass.JUDGE_SAMPLE]


@asynccontextmanager
async def rig(folder: Path, service: Service, seconds: float = 40.0) -> AsyncIterator[Rig]:
    (folder / "grader.py").write_text(judge_rig.ENVIRONMENT)
    of = spec()
    of = of.model_copy(update={"rollout": of.rollout.model_copy(update={"timeout_seconds": seconds})})
    async with AsyncExitStack() as stack:
        leases = await stack.enter_async_context(lease_service(folder, "grader:Grader", "t"))
        judges = await stack.enter_async_context(judge_rig.judges(folder, judge_rig.spec(service.url)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        ledger = Ledger(FileStore(), Layout(f"file://{folder}/store", "ns", "job", "uid"))
        broker = Broker(http, leases.url, "t", "me")

        async def bill(whose: str, found: Sequence[Judgement]) -> None:
            one.billed.append(whose)
            ledger.judgements(whose, found, 1_700_000_000.0)

        def changed() -> None:
            one.waited += one.player.waiting.values()

        one = Rig(Player(of, broker, AdaptiveSemaphore(1), "script-0", judges, bill, changed), ledger)
        yield one


def script(case: int, after: int | None = None, **row: Any) -> Script:
    label = None if after is None else f"case {after}"
    whole = {"case": case, "reward": judge_rig.ASKS, **row}
    return Script("hacking", f"case {case}", whole, 7, answer="Done.", after=label)


async def test_a_script_waits_for_a_judge_and_is_retried(tmp_path: Path) -> None:
    async with endpoint(GRADE) as service, rig(tmp_path, service) as r:
        service.answers = [*[fails(500)] * asking.TRIES, fails(500), says("ok"), GRADE]
        played = await r.player.play([script(0), script(1, after=0)])
    assert [(one.error, one.reward) for one in played] == [(None, 0.5), (None, 0.5)]
    assert r.waited, "status says what it waits for"
    assert "judge style" in r.waited[0]
    assert r.player.waiting == {}


async def test_a_script_that_timed_out_on_a_judge_is_retried(tmp_path: Path) -> None:
    async with endpoint(GRADE) as service, rig(tmp_path, service, seconds=8.0) as r:
        service.answers = [silent, GRADE]
        [played] = await r.player.play([script(0)])
    assert (played.error, played.reward) == (None, 0.5)
    assert r.billed == ["script-0-0-0", "script-0-0-1"]


async def test_a_fault_of_the_environment_is_not_retried(tmp_path: Path) -> None:
    async with endpoint(GRADE) as service, rig(tmp_path, service) as r:
        [played] = await r.player.play([script(0, reward="self.judge('another', [user('?')])")])
    assert played.error is not None
    assert r.waited == []


async def test_answers_are_billed_before_the_next_script_ends(tmp_path: Path) -> None:
    """If the coordinator ends during the second script, the bill has the first script's answers."""
    async with endpoint(GRADE) as service, rig(tmp_path, service) as r:
        service.answers = [GRADE, silent]
        playing = asyncio.create_task(r.player.play([script(0), script(1, after=0)]))
        async with asyncio.timeout(20):
            while len(service.bodies) < 2:
                await asyncio.sleep(0.01)
        assert r.billed == ["script-0-0-0"]
        assert r.tokens == 25
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        again = Ledger(FileStore(), Layout(f"file://{tmp_path}/store", "ns", "job", "uid"))
        again.load()
    assert again.days == r.ledger.days
