"""Where a step's seconds went: every second is told once, and what nobody measured is told as such."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import learner_rig
import pytest

from headway_analysis.report.timeline import (
    BETWEEN,
    DELIVERY,
    EPISODES,
    LEARNER,
    PLACE,
    UNKNOWN,
    Lived,
    spent,
    trace,
    waiting,
)
from headway_api.records import EpisodeSpan, StepReport

SAMPLING, TOOLS, SANDBOX = "sampling by the model", "tools", "waiting for a sandbox"


def lived(name: str, began: float, *spans: tuple[str, float]) -> Lived:
    """An episode of waits one after another, with a second of nothing after each."""
    found, at = [], 0.0
    for kind, seconds in spans:
        found.append(EpisodeSpan(kind=kind, began=at, ended=at + seconds))  # type: ignore[arg-type]
        at += seconds + 1
    return Lived(name, began, began + at, "Completed", tuple(found))


def report(number: int, ended_at: float | None, **seconds: float) -> StepReport:
    metrics = {f"timing_s/{name}": value for name, value in seconds.items()}
    return learner_rig.report(number).model_copy(
        update={"groups": ["t0-000000"], "metrics": metrics, "ended_at": ended_at}
    )


def test_a_wait_is_what_the_last_episode_waited_for() -> None:
    one = lived("a", 100, ("sandbox", 2), ("turn", 30), ("tool", 5))  # ends at 140
    other = lived("b", 100, ("turn", 10))
    assert waiting(100, 142, [one, other]) == {
        SANDBOX: 2,
        SAMPLING: 30,
        TOOLS: 5,
        BETWEEN: 3,
        DELIVERY: 2,
    }


def test_before_it_began_counts_the_episode_whose_place_it_took() -> None:
    first = lived("a", 100, ("turn", 19))  # ends at 120
    second = lived("b", 120.1, ("turn", 9))  # ends at 130.1
    found = waiting(100, 130.1, [second, first])
    assert found[SAMPLING] == pytest.approx(28)
    assert found[BETWEEN] == pytest.approx(2)
    assert found[PLACE] == pytest.approx(0.1)


def test_an_episode_that_took_nobodys_place_waited_for_one() -> None:
    found = waiting(100, 130, [lived("b", 120, ("turn", 9)), lived("a", 100, ("turn", 3))])
    assert found == {SAMPLING: 9, BETWEEN: 1, PLACE: 20}


def test_what_came_before_the_wait_does_not_count() -> None:
    assert waiting(110, 120, [lived("a", 100, ("turn", 19))]) == {SAMPLING: 9, BETWEEN: 1}


def test_spans_side_by_side_count_once() -> None:
    spans = tuple(EpisodeSpan(kind="turn", began=began, ended=began + 10) for began in (0, 5))
    assert waiting(0, 15, [Lived("a", 0, 15, "Completed", spans)]) == {SAMPLING: 15}


def test_of_records_without_times_the_whole_episode_is_told_as_one() -> None:
    assert waiting(0, 10, [Lived("a", 0, 10, "Completed", ())]) == {BETWEEN: 10}


def test_without_episodes_nothing_is_known() -> None:
    assert waiting(0, 10, []) == {UNKNOWN: 10}


def test_a_step_is_told_from_the_end_of_the_one_before() -> None:
    episodes = [lived("a", 1000, ("turn", 39))]  # ends at 1040
    now = report(2, 1050, wait_for_batch=40, policy_update=8, publish_weights=1, step=49, training=9)
    found = spent(report(1, 1000), now, episodes)
    assert found is not None
    assert found.seconds == 50
    assert found.parts == {
        SAMPLING: 38,  # the wait began at 1001
        "learner: policy update": 8,
        BETWEEN: 1,
        DELIVERY: 1,
        "learner: publish weights": 1,
        UNKNOWN: 1,
    }
    assert found.known == pytest.approx(0.98)


def test_a_step_whose_reports_have_no_time_is_not_told() -> None:
    assert spent(report(1, None), report(2, 3.0), []) is None
    assert spent(report(1, 1.0), report(2, None), []) is None


@pytest.mark.parametrize("seed", range(200))
def test_every_second_is_told_once(seed: int) -> None:
    rng = random.Random(seed)
    episodes = [
        lived(
            str(n),
            rng.uniform(0, 50),
            *[(rng.choice(["turn", "tool", "reset"]), rng.uniform(0, 5)) for _ in range(rng.randrange(4))],
        )
        for n in range(rng.randrange(12))
    ]
    since = rng.uniform(0, 40)
    until = since + rng.uniform(0, 40)
    found = waiting(since, until, episodes)
    assert sum(found.values()) == pytest.approx(until - since)
    assert all(amount > 0 for amount in found.values())


def slices(found: dict[str, Any], process: int) -> list[dict[str, Any]]:
    return [each for each in found["traceEvents"] if each["ph"] == "X" and each["pid"] == process]


def test_a_trace_has_steps_with_their_parts_and_episodes_in_lanes() -> None:
    reports = [report(1, 1050, wait_for_batch=40, policy_update=8)]
    episodes = [lived("a", 1000, ("turn", 9)), lived("b", 1005, ("tool", 9)), lived("c", 1011, ("turn", 4))]
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
    episodes = [lived(str(n), rng.uniform(0, 100), ("turn", rng.uniform(0, 30))) for n in range(40)]
    by_lane: dict[int, list[tuple[int, int]]] = {}
    for each in slices(trace([], episodes), EPISODES):
        if each["name"].isdecimal():
            by_lane.setdefault(each["tid"], []).append((each["ts"], each["ts"] + each["dur"]))
    for lane in by_lane.values():
        lane.sort()
        assert all(before[1] <= after[0] + 1 for before, after in pairwise(lane))
