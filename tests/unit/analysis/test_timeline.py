"""Where a step's seconds went: every second counts once, and unmeasured time is shown as such."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import learner_rig
import pytest

from headway_analysis.report.timeline import (
    DELIVERY,
    EPISODES,
    FORMING,
    LEARNER,
    PLACE,
    RESTART,
    UNKNOWN,
    EpisodeTiming,
    spent,
    trace,
    waiting,
)
from headway_api.records import BatchWait, BatchWaitKind, BatchWaits, EpisodeSpan, SpanKind, StepReport

SAMPLING, TOOLS, SANDBOX = "sampling by the model", "tools", "waiting for a sandbox"
AGENT, WEIGHTS = "the agent between turns and tools", "until a server had the weights"
STORING = "storing of the batch's last group"


def timing(
    name: str, began: float, *spans: tuple[SpanKind, float], queued: float | None = None
) -> EpisodeTiming:
    """An episode with these waits one after another, and a second of its agent after each wait."""
    found, at = [], 0.0
    for kind, seconds in spans:
        found.append(EpisodeSpan(kind=kind, began=at, ended=at + seconds))
        at += seconds + 1
    agent = EpisodeSpan(kind="agent", began=0, ended=at)
    return EpisodeTiming(name, began, began + at, "Completed", (agent, *found), queued)


def sent(at: float, *waits: tuple[BatchWaitKind, float, float]) -> BatchWaits:
    """The coordinator's record of a batch that it sent."""
    found = [BatchWait(kind=kind, began=began, ended=ended) for kind, began, ended in waits]
    return BatchWaits(sent_at=at, waits=found)


def report(
    number: int, ended_at: float | None, waits: BatchWaits | None = None, **seconds: float
) -> StepReport:
    metrics = {f"timing_s/{name}": value for name, value in seconds.items()}
    return learner_rig.report(number).model_copy(
        update={"groups": ["t0-000000"], "metrics": metrics, "ended_at": ended_at, "waits": waits}
    )


def test_a_wait_is_what_the_last_episode_waited_for() -> None:
    one = timing("a", 100, ("sandbox", 2), ("turn", 30), ("tool", 5))  # ends at 140
    other = timing("b", 100, ("turn", 10))
    assert waiting(100, 142, [one, other], sent(140)) == {
        SANDBOX: 2,
        SAMPLING: 30,
        TOOLS: 5,
        AGENT: 3,
        DELIVERY: 2,
    }


def test_a_wait_for_a_place_counts_the_episode_that_held_it() -> None:
    first = timing("a", 100, ("turn", 19))  # ends at 120
    second = timing("b", 120.1, ("turn", 9))  # ends at 130.1
    for queued in (None, 100.5):
        later = EpisodeTiming(second.name, second.began, second.ended, second.outcome, second.spans, queued)
        found = waiting(100, 130.1, [later, first])
        assert found[SAMPLING] == pytest.approx(28)
        assert found[AGENT] == pytest.approx(2)
        assert found[PLACE] == pytest.approx(0.1)


def test_an_episode_waits_for_a_place_since_it_was_queued() -> None:
    """Other episodes hold the places, such as those of a validation."""
    found = waiting(100, 130, [timing("b-0", 120, ("turn", 9), queued=105), timing("a-0", 100, ("turn", 3))])
    assert found == {SAMPLING: 9, AGENT: 1, PLACE: 15, UNKNOWN: 5}


def test_an_older_record_does_not_explain_a_late_episode_start() -> None:
    found = waiting(100, 130, [timing("b-0", 120, ("turn", 9)), timing("a-0", 100, ("turn", 3))])
    assert found == {SAMPLING: 9, AGENT: 1, UNKNOWN: 20}


def test_an_episode_ended_before_another_queued_gave_it_no_place() -> None:
    found = waiting(
        100, 130, [timing("b-0", 120, ("turn", 9), queued=119.95), timing("a-0", 100, ("turn", 18.9))]
    )
    assert found == {SAMPLING: 9, AGENT: 1, PLACE: pytest.approx(0.05), UNKNOWN: pytest.approx(19.95)}


def test_a_retry_follows_the_attempt_before_it() -> None:
    first = timing("t0-000007-3-0", 100, ("turn", 9))  # ends at 110
    again = timing("t0-000007-3-1", 125, ("turn", 4), queued=110)
    assert waiting(100, 130, [first, again]) == {SAMPLING: 13, AGENT: 2, PLACE: 15}


def test_waits_beside_episodes_are_as_the_coordinator_measured() -> None:
    batch = sent(129, ("start", 90, 102), ("weights", 102, 114), ("storing", 126, 128))
    found = waiting(100, 130, [timing("a", 116, ("turn", 9), queued=115)], batch)
    assert found == {
        "start of the coordinator": 2,
        WEIGHTS: 12,
        UNKNOWN: 1,  # from 114 to 115
        PLACE: 1,
        SAMPLING: 9,
        AGENT: 1,
        STORING: 2,
        FORMING: 1,
        DELIVERY: 1,
    }


def test_a_batch_is_formed_while_nothing_else_withholds_it() -> None:
    batch = sent(109, ("storing", 100, 102), ("validation", 103, 106))
    assert waiting(100, 110, [], batch) == {
        STORING: 2,
        "a validation before the batch": 3,
        FORMING: 4,  # from 102 to 103, and from 106 to 109
        DELIVERY: 1,
    }


def test_the_waits_of_an_older_reports_batch_are_unknown() -> None:
    assert waiting(100, 120, [timing("a", 100, ("turn", 9))]) == {SAMPLING: 9, AGENT: 1, UNKNOWN: 10}


def test_time_before_the_wait_does_not_count() -> None:
    assert waiting(110, 120, [timing("a", 100, ("turn", 19))]) == {SAMPLING: 9, AGENT: 1}


def test_spans_side_by_side_count_once() -> None:
    spans = tuple(EpisodeSpan(kind="turn", began=began, ended=began + 10) for began in (0, 5))
    assert waiting(0, 15, [EpisodeTiming("a", 0, 15, "Completed", spans)]) == {SAMPLING: 15}


def test_an_episode_that_measured_nothing_is_not_accounted_for() -> None:
    assert waiting(0, 10, [EpisodeTiming("a", 0, 10, "Completed", ())]) == {UNKNOWN: 10}
    ended = report(2, 10, sent(10), wait_for_batch=10)
    found = spent(report(1, 0), ended, [EpisodeTiming("a", 0, 10, "Completed", ())])
    assert found is not None
    assert found.known == 0


def test_time_between_an_older_records_spans_is_unknown() -> None:
    """An older record does not say when the agent ran."""
    spans = (EpisodeSpan(kind="sandbox", began=0, ended=2), EpisodeSpan(kind="turn", began=3, ended=9))
    assert waiting(0, 10, [EpisodeTiming("a", 0, 10, "Completed", spans)]) == {
        SANDBOX: 2,
        SAMPLING: 6,
        UNKNOWN: 2,
    }


def test_the_agent_runs_while_its_span_has_nothing_else() -> None:
    spans: list[tuple[SpanKind, float, float]] = [
        ("sandbox", 0, 2),
        ("agent", 3, 9),
        ("place", 3.5, 4),
        ("turn", 4, 6),
        ("release", 9.5, 10),
    ]
    found = tuple(EpisodeSpan(kind=kind, began=began, ended=ended) for kind, began, ended in spans)
    assert waiting(0, 10, [EpisodeTiming("a", 0, 10, "Completed", found)]) == {
        SANDBOX: 2,
        UNKNOWN: 1.5,
        AGENT: 3.5,
        PLACE: 0.5,
        SAMPLING: 2,
        "return of the sandbox": 0.5,
    }


def test_without_episodes_nothing_is_known() -> None:
    assert waiting(0, 10, []) == {UNKNOWN: 10}


def test_a_step_is_measured_from_the_end_of_the_one_before() -> None:
    episodes = [timing("a", 1000, ("turn", 39))]  # ends at 1040
    seconds = {"wait_for_batch": 40, "policy_update": 8, "publish_weights": 1, "step": 49, "training": 9}
    now = report(2, 1050, sent(1040), **seconds)
    found = spent(report(1, 1000), now, episodes)
    assert found is not None
    assert found.seconds == 50
    assert found.parts == {
        SAMPLING: 38,  # the wait began at 1001
        "learner: policy update": 8,
        AGENT: 1,
        DELIVERY: 1,
        "learner: publish weights": 1,
        UNKNOWN: 1,
    }
    assert found.known == pytest.approx(0.98)


def test_a_wait_follows_the_previous_steps_report_and_checkpoint() -> None:
    """Otherwise the last episode would end after the wait, and the wait would be unexplained."""
    spans = (EpisodeSpan(kind="agent", began=0, ended=5.5),)
    episodes = [EpisodeTiming("a", 1015, 1020.5, "Completed", spans)]
    seconds = {"report": 10, "save_checkpoint": 9, "prune": 1, "wait_for_batch": 1, "policy_update": 1}
    now = report(2, 1022, sent(1020.6), **seconds)
    found = spent(report(1, 1000), now, episodes)
    assert found is not None
    assert found.parts[AGENT] == 0.5
    assert found.parts[DELIVERY] == pytest.approx(0.4)
    assert found.parts[UNKNOWN] == pytest.approx(0.1)


def test_before_a_learner_started_no_one_trained() -> None:
    now = report(2, 1060, sent(1059), start=20, wait_for_batch=9, policy_update=1)
    found = spent(report(1, 1000), now, [timing("a", 1050, ("turn", 8))])
    assert found is not None
    assert (found.parts[RESTART], found.parts["learner: start"], found.known) == (30, 20, 1)


def test_a_learner_may_start_during_its_predecessors_last_step() -> None:
    found = spent(report(1, 1000), report(2, 1010, start=20, policy_update=1), [])
    assert found is not None
    assert found.parts == {"learner: start": 9, "learner: policy update": 1}


def test_a_step_whose_reports_have_no_time_has_no_timeline() -> None:
    assert spent(report(1, None), report(2, 3.0), []) is None
    assert spent(report(1, 1.0), report(2, None), []) is None


@pytest.mark.parametrize("seed", range(200))
def test_every_second_is_counted_once(seed: int) -> None:
    rng = random.Random(seed)
    kinds: list[SpanKind] = ["turn", "tool", "reset", "place", "release"]
    of_batch: list[BatchWaitKind] = ["start", "weights", "validation", "budget", "storing"]
    episodes = []
    for n in range(rng.randrange(12)):
        began = rng.uniform(0, 50)
        spans = [(rng.choice(kinds), rng.uniform(0, 5)) for _ in range(rng.randrange(4))]
        queued = rng.choice([None, began - rng.uniform(0, 20)])
        episodes.append(timing(f"t0-000000-{n % 3}-{n}", began, *spans, queued=queued))
    since = rng.uniform(0, 40)
    until = since + rng.uniform(0, 40)
    waits = [(kind, at := rng.uniform(0, 80), at + rng.uniform(0, 20)) for kind in of_batch]
    batch = rng.choice([None, sent(rng.uniform(since, until), *waits)])
    found = waiting(since, until, episodes, batch)
    assert sum(found.values()) == pytest.approx(until - since)
    assert all(amount > 0 for amount in found.values())


def slices(found: dict[str, Any], process: int) -> list[dict[str, Any]]:
    return [each for each in found["traceEvents"] if each["ph"] == "X" and each["pid"] == process]


def test_a_trace_holds_steps_with_parts_and_episodes_in_lanes() -> None:
    reports = [report(1, 1050, wait_for_batch=40, policy_update=8)]
    episodes = [
        timing("a", 1000, ("turn", 9)),
        timing("b", 1005, ("tool", 9)),
        timing("c", 1011, ("turn", 4)),
    ]
    found = trace(reports, episodes)
    assert found["otherData"] == {"begins": 1000}
    step, wait, update = slices(found, LEARNER)
    assert (step["ts"], step["dur"], step["name"]) == (2_000_000, 48_000_000, "step 1")
    assert (wait["ts"], wait["dur"]) == (2_000_000, 40_000_000)
    assert (update["ts"], update["dur"]) == (42_000_000, 8_000_000)
    lanes = {each["name"]: each["tid"] for each in slices(found, EPISODES) if each["name"] in "abc"}
    assert lanes == {"a": 1, "b": 2, "c": 1}


@pytest.mark.parametrize("seed", range(50))
def test_episodes_of_one_lane_do_not_overlap(seed: int) -> None:
    rng = random.Random(seed)
    episodes = [timing(str(n), rng.uniform(0, 100), ("turn", rng.uniform(0, 30))) for n in range(40)]
    by_lane: dict[int, list[tuple[int, int]]] = {}
    for each in slices(trace([], episodes), EPISODES):
        if each["name"].isdecimal():
            by_lane.setdefault(each["tid"], []).append((each["ts"], each["ts"] + each["dur"]))
    for lane in by_lane.values():
        lane.sort()
        assert all(before[1] <= after[0] + 1 for before, after in pairwise(lane))
