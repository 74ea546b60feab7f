"""The learner's loop where its end is not the coordinator's word: what is durable by then, on every rank."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any, cast

import learner_rig as rig
import pytest

from headway_api.exits import RETRIABLE, JobError
from headway_api.records import StepReport
from headway_trainer import coordinator as client
from headway_trainer import learner as module
from headway_trainer.coordinator import Coordinator, Unreachable
from headway_trainer.learner import Learner, Stopwatch, Word, serve
from headway_trainer.ranks import Ranks
from headway_trainer.termination import Hold


@pytest.fixture(autouse=True)
def hold(monkeypatch: pytest.MonkeyPatch) -> Hold:
    """SIGTERM, as far as this process's loop is concerned; and pauses that a test can wait for."""
    made = Hold()
    monkeypatch.setattr(module, "HOLD", made)
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(client, "LONGEST_PAUSE", 0.02)
    return made


class Scripted:
    """A learner, and its keeper, that trains by counting; a checkpoint is made only when it is asked for."""

    def __init__(self, step: int = 0) -> None:
        self.keeper = self
        self.step = step
        self.durable = self.saved = 0

    def resume(self) -> StepReport:
        return self._report()

    def prepare(self, batch: Any) -> Any:
        return batch

    def train(self, batch: Any, incarnation: int, before: Stopwatch) -> StepReport:
        self.step += 1
        return self._report()

    def save(self, made: StepReport) -> None:
        self.saved = made.step

    def settle(self) -> None:
        self.durable = self.saved

    def _report(self) -> StepReport:
        return rig.report(self.step).model_copy(update={"durable": self.durable})

    def after(self, made: StepReport) -> None:
        """Nothing is due."""

    def check(self) -> None:
        """Nothing failed."""

    def prune(self, latest: int, validated: Any) -> None:
        """Nothing to delete."""

    def export(self, newest: StepReport) -> None:
        """They lie whole in the store."""


class Told:
    """Rank 1 of two: what rank 0 shares reaches it as bytes do."""

    first = False

    def __init__(self, word: Word) -> None:
        self._word = pickle.dumps(word)

    def share(self, mine: Word) -> Any:
        return pickle.loads(self._word)

    def maximum(self, values: list[float]) -> list[float]:
        return values


async def served(learner: Scripted, coordinator: Coordinator | None, ranks: Any) -> BaseException | None:
    """Run the loop; what it raised."""
    call = asyncio.to_thread(serve, cast(Learner, learner), coordinator, cast(Ranks, ranks), None)
    (ended,) = await asyncio.gather(asyncio.wait_for(call, 30), return_exceptions=True)
    return ended


@pytest.mark.parametrize("heard", [0, 1])
async def test_a_coordinator_that_stays_away_is_left_with_all_that_was_trained_durable(heard: int) -> None:
    """It goes away before it hears of step 1, and after."""
    learner = Scripted()
    gone = False

    def fault(request: Any) -> str | None:
        nonlocal gone
        gone = gone or (learner.step > 0 and (heard == 0 or request.method == "GET"))
        return "503" if gone else None

    script = rig.ScriptedCoordinator([rig.batch(1), rig.batch(2)], fault=fault)
    async with script.serving() as url:
        coordinator = Coordinator(url, rig.TOKEN, patience=0.2)
        ended = await served(learner, coordinator, Ranks(0, 0, 1, None))
    assert script.step == heard
    assert learner.durable == 1
    assert isinstance(ended, JobError)
    assert (ended.termination.reason, ended.code) == ("CoordinatorUnreachable", RETRIABLE)


async def test_the_other_ranks_save_with_the_first_one() -> None:
    learner = Scripted(step=4)
    ended = await served(learner, None, Told(Word(Unreachable("no answer for 600 s"), durable=0)))
    assert learner.durable == 4
    assert isinstance(ended, Unreachable)
    assert ended.termination.message == "no answer for 600 s"


async def test_told_to_stop_while_the_coordinator_is_away_it_stops(hold: Hold) -> None:
    learner = Scripted(step=4)
    hold.set(True)
    assert hold.defers()
    ended = await served(learner, None, Told(Word(Unreachable("no answer for 600 s"), durable=0)))
    assert learner.durable == 4
    assert ended is None


async def test_one_that_comes_back_in_time_is_told_again() -> None:
    learner = Scripted()
    refused = 0

    def fault(request: Any) -> str | None:
        nonlocal refused
        refused += learner.step > 0
        return "503" if 0 < refused < 4 else None

    script = rig.ScriptedCoordinator([rig.batch(1)], fault=fault)
    async with script.serving() as url:
        coordinator = Coordinator(url, rig.TOKEN, patience=30)
        call = asyncio.to_thread(serve, cast(Learner, learner), coordinator, Ranks(0, 0, 1, None), None)
        finished = await asyncio.wait_for(call, 30)
    assert finished is not None
    assert (finished.reason, script.step, script.durable) == ("MaxSteps", 1, 1)


def test_ranks_that_lay_rows_out_differently_are_refused() -> None:
    """Each plans the whole step: one that packs would train other rows than one that pads."""
    alike = [(True, "flash", "chunked")] * 2
    module._require_one(set(alike))
    with pytest.raises(JobError, match="different layouts") as refused:
        module._require_one({*alike, (False, "eager", "whole")})
    assert refused.value.termination.reason == "RanksDiffer"
    assert refused.value.termination.field == "spec.learner.podTemplate"
    assert refused.value.code == RETRIABLE
