"""The learner's loop if something other than the coordinator ends it: what is durable on every rank."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from typing import Any, cast

import learner_rig as rig
import pytest
from role_keys import TO_COORDINATOR

from headway_api.exits import RETRIABLE, JobError
from headway_api.in_force import Directive
from headway_api.records import Batch, Finished, StepReport
from headway_trainer import coordinator_client as client
from headway_trainer import loop as module
from headway_trainer.assembly import _require_one
from headway_trainer.coordinator_client import CoordinatorClient, CoordinatorUnreachableError
from headway_trainer.learner import Learner
from headway_trainer.loop import RankMessage, serve
from headway_trainer.ranks import Ranks
from headway_trainer.stopwatch import Stopwatch
from headway_trainer.termination import ShutdownGuard


@pytest.fixture(autouse=True)
def hold(monkeypatch: pytest.MonkeyPatch) -> ShutdownGuard:
    """A guard with which the test simulates SIGTERM. Also shortens the client's pauses."""
    made = ShutdownGuard()
    monkeypatch.setattr(module, "SHUTDOWN_GUARD", made)
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(client, "LONGEST_PAUSE", 0.02)
    return made


class Scripted:
    """A learner that only counts steps, and its own checkpointer. Checkpoints are made only on request."""

    def __init__(self, step: int = 0) -> None:
        self.checkpointer = self
        self.step = step
        self.durable = self.saved = 0
        self.known_step = -1
        """The newest step that was announced."""
        self.kept: Any = None
        """Arguments of the last `prune`."""
        self.done: list[Batch] = []
        """Batches whose directive was carried out."""

    def resume(self) -> StepReport:
        return self._report()

    def prepare(self, batch: Any) -> Any:
        return "rows", batch.step

    def train(self, batch: Any, incarnation: int, before: Stopwatch) -> StepReport:
        self.step += 1
        return self._report()

    def remedy(self, batch: Any, incarnation: int, before: Stopwatch) -> StepReport:
        self.step += 1
        self.done.append(batch)
        return self._report().model_copy(update={"directive": batch.directive})

    def save(self, made: StepReport) -> None:
        self.saved = made.step

    def settle(self) -> None:
        self.durable = self.saved

    def _report(self) -> StepReport:
        return rig.report(self.step).model_copy(update={"durable": self.durable})

    def after(self, made: StepReport) -> None:
        """No checkpoint is due."""

    def check(self) -> None:
        """No upload failed."""

    def prune(self, latest: int, validated: Any, validating: Any = ()) -> None:
        self.kept = latest, (*validated,), (*validating,)

    def export(self, newest: StepReport) -> None:
        """Nothing to do, because all weights are already whole in the store."""

    def announced(self) -> None:
        self.known_step = self.step


class Silent:
    """A coordinator that hands out batches and records requests; after a stop signal, none should come."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def announce(self, report: StepReport, give_up: Callable[[], bool] = lambda: False) -> None:
        self.heard.append(f"announce {report.step}")

    def poll(self, step: int, wait: float) -> Batch:
        self.heard.append(f"poll {step}")
        return rig.batch(step)


class First:
    """Rank 0 of two. Rank 1 was asked to stop while step 5 was trained."""

    first = True

    def __init__(self, learner: Scripted) -> None:
        self._learner = learner

    def share(self, mine: RankMessage) -> RankMessage:
        return mine

    def maximum(self, values: list[float]) -> list[float]:
        return [max(*values, float(self._learner.step == 5))]


class Follower:
    """Rank 1 of two. It receives rank 0's message through pickle, as bytes."""

    first = False

    def __init__(self, word: RankMessage) -> None:
        self._word = pickle.dumps(word)

    def share(self, mine: RankMessage) -> Any:
        return pickle.loads(self._word)

    def maximum(self, values: list[float]) -> list[float]:
        return values

    def barrier(self) -> None:
        """Return at once."""


async def served(
    learner: Scripted, coordinator: CoordinatorClient | None, ranks: Any
) -> BaseException | None:
    """Run the loop. Returns the exception that ended it, or None."""
    parts = cast(Learner, learner), coordinator, cast(Ranks, ranks)
    call = asyncio.to_thread(serve, *parts, None, time.time())
    (ended,) = await asyncio.gather(asyncio.wait_for(call, 30), return_exceptions=True)
    return ended


async def test_pruning_follows_the_validations_named_in_a_batch() -> None:
    learner, pruned = Scripted(), list[Any]()
    plain = learner.prune

    def prune(latest: int, validated: Any, validating: Any = ()) -> None:
        plain(latest, validated, validating)
        pruned.append(learner.kept)

    learner.prune = prune  # type: ignore[method-assign]
    batches = [
        rig.batch(1).model_copy(update={"validating": [0]}),
        rig.batch(2).model_copy(update={"validated": [0], "validating": [1]}),
    ]
    script = rig.ScriptedCoordinator(batches)
    async with script.serving() as url:
        ended = await served(
            learner, CoordinatorClient(url, TO_COORDINATOR, patience=5), Ranks(0, 0, 1, None)
        )
    assert isinstance(ended, Finished)
    assert pruned == [(1, (), (0,)), (2, (0,), (1,)), (2, (0,), ())]


@pytest.mark.parametrize("heard", [0, 1])
async def test_an_unreachable_coordinator_leaves_trained_steps_durable(heard: int) -> None:
    """The coordinator becomes unreachable before or after it receives the report of step 1."""
    learner = Scripted()
    gone = False

    def fault(request: Any) -> str | None:
        nonlocal gone
        gone = gone or (learner.step > 0 and (heard == 0 or request.method == "GET"))
        return "503" if gone else None

    script = rig.ScriptedCoordinator([rig.batch(1), rig.batch(2)], fault=fault)
    async with script.serving() as url:
        coordinator = CoordinatorClient(url, TO_COORDINATOR, patience=0.2)
        ended = await served(learner, coordinator, Ranks(0, 0, 1, None))
    assert script.step == heard
    assert learner.durable == 1
    assert isinstance(ended, JobError)
    assert (ended.termination.reason, ended.code) == ("CoordinatorUnreachable", RETRIABLE)


async def test_all_ranks_save_when_the_first_one_does() -> None:
    learner = Scripted(step=4)
    ended = await served(
        learner, None, Follower(RankMessage(CoordinatorUnreachableError("no answer for 600 s"), durable=0))
    )
    assert learner.durable == 4
    assert isinstance(ended, CoordinatorUnreachableError)
    assert ended.termination.message == "no answer for 600 s"


async def test_sigterm_stops_a_learner_that_waits_for_a_coordinator(hold: ShutdownGuard) -> None:
    learner = Scripted(step=4)
    hold.set(True)
    assert hold.defers()
    ended = await served(
        learner, None, Follower(RankMessage(CoordinatorUnreachableError("no answer for 600 s"), durable=0))
    )
    assert learner.durable == 4
    assert ended is None


@pytest.mark.parametrize("stopped", ["this rank", "another"])
async def test_a_stop_during_training_saves_without_any_request(hold: ShutdownGuard, stopped: str) -> None:
    """Each request to a hanging coordinator would cost a minute of the time that remains for saving."""

    class Stopped(Scripted):
        def train(self, batch: Any, incarnation: int, before: Stopwatch) -> StepReport:
            assert stopped != "this rank" or hold.defers()
            return super().train(batch, incarnation, before)

    learner, coordinator = Stopped(step=4), Silent()
    ranks = First(learner) if stopped == "another" else Ranks(0, 0, 1, None)
    assert await served(learner, cast(CoordinatorClient, coordinator), ranks) is None
    assert (learner.durable, learner.known_step) == (5, 4)
    assert coordinator.heard == ["announce 4", "poll 5"]


async def test_a_stop_during_the_announcement_prevents_the_next_poll(hold: ShutdownGuard) -> None:
    class Stopped(Silent):
        def announce(self, report: StepReport, give_up: Callable[[], bool] = lambda: False) -> None:
            super().announce(report)
            assert report.step == 4 or hold.defers()
            assert give_up() == (report.step == 5)

    learner, coordinator = Scripted(step=4), Stopped()
    assert await served(learner, cast(CoordinatorClient, coordinator), Ranks(0, 0, 1, None)) is None
    assert learner.durable == 5
    assert coordinator.heard == ["announce 4", "poll 5", "announce 5"]


async def test_work_after_a_step_is_timed_with_the_next_step(hold: ShutdownGuard) -> None:
    timed: list[set[str]] = []

    class Timed(Scripted):
        def train(self, batch: Any, incarnation: int, before: Stopwatch) -> StepReport:
            timed.append(set(before.seconds))
            assert self.step == 0 or hold.defers()
            return super().train(batch, incarnation, before)

    assert await served(Timed(), cast(CoordinatorClient, Silent()), Ranks(0, 0, 1, None)) is None
    after_a_step = {"report", "wait_for_batch", "save_checkpoint", "prune"}
    assert timed == [{"start", "wait_for_batch"}, after_a_step]


def test_the_first_step_is_timed_from_process_start_or_step_0() -> None:
    now = time.time()
    resumed = rig.report(3).model_copy(update={"ended_at": now - 500})
    found = Stopwatch.of_first_step(resumed, started=now - 20)
    assert found.began == now - 20
    assert found.seconds == {"start": pytest.approx(20, abs=5)}
    made = rig.report(0).model_copy(update={"ended_at": now - 3})
    found = Stopwatch.of_first_step(made, started=now - 20)
    assert found.began == now - 3
    assert found.seconds == {"report": pytest.approx(3, abs=5)}


def test_the_parts_of_a_steps_time_add_up() -> None:
    watch = Stopwatch({"wait_for_batch": 4.0, "report": 1.0}, began=100.0)
    assert watch.complete(107.0) == {"wait_for_batch": 4.0, "report": 1.0, "other": 2.0}
    assert watch.complete(104.0)["other"] == 0, "parts may be measured by another clock"


async def test_no_rank_succeeds_before_the_first_rank_has_exported() -> None:
    """A node that has succeeded is not restarted, and the first node cannot restart without it."""
    did: list[str] = []

    class Exporting(Scripted):
        def export(self, newest: StepReport) -> None:
            did.append("export")

    class Waiting(Follower):
        def barrier(self) -> None:
            did.append("wait")

    word = RankMessage(Finished(reason="MaxSteps"), durable=4)
    assert await served(Exporting(step=4), None, Waiting(word)) == Finished(reason="MaxSteps")
    assert did == ["export", "wait"]


async def test_a_directive_is_a_step_like_any_other_on_every_rank() -> None:
    """It is announced and pruned like any step, and the next one follows, but it makes no training rows."""
    asked = Batch(step=2, epoch=0, groups=[], directive=Directive(remedy="RollBack", restore=[0]))
    learner = Scripted()
    script = rig.ScriptedCoordinator(
        [rig.batch(1), asked.model_copy(update={"validated": [0]}), rig.batch(3)]
    )
    async with script.serving() as url:
        ended = await served(
            learner, CoordinatorClient(url, TO_COORDINATOR, patience=5), Ranks(0, 0, 1, None)
        )
    assert isinstance(ended, Finished)
    assert [batch.step for batch in learner.done] == [2]
    assert [report.step for report in script.reports if report.directive] == [2]
    assert script.step == 3

    class Once(Follower):
        def share(self, mine: RankMessage) -> Any:
            word, self._word = self._word, pickle.dumps(RankMessage(Finished(reason="MaxSteps"), durable=0))
            return pickle.loads(word)

    other = Scripted(step=1)
    assert isinstance(await served(other, None, Once(RankMessage(asked, durable=0))), Finished)
    assert other.done == [asked]


async def test_a_coordinator_back_in_time_gets_the_report_again() -> None:
    learner = Scripted()
    refused = 0

    def fault(request: Any) -> str | None:
        nonlocal refused
        refused += learner.step > 0
        return "503" if 0 < refused < 4 else None

    script = rig.ScriptedCoordinator([rig.batch(1)], fault=fault)
    async with script.serving() as url:
        coordinator = CoordinatorClient(url, TO_COORDINATOR, patience=30)
        parts = cast(Learner, learner), coordinator, Ranks(0, 0, 1, None)
        call = asyncio.to_thread(serve, *parts, None, time.time())
        finished = await asyncio.wait_for(call, 30)
    assert finished is not None
    assert (finished.reason, script.step, script.durable) == ("MaxSteps", 1, 1)


def test_ranks_that_lay_rows_out_differently_are_refused() -> None:
    """Each rank plans the whole step, so a rank that packs would train other rows than one that pads."""
    alike = [(True, "flash", "chunked")] * 2
    _require_one(set(alike))
    with pytest.raises(JobError, match="different layouts") as refused:
        _require_one({*alike, (False, "eager", "whole")})
    assert refused.value.termination.reason == "RanksDiffer"
    assert refused.value.termination.field == "spec.learner.podTemplate"
    assert refused.value.code == RETRIABLE
