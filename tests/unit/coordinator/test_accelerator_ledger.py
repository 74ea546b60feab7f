"""Accelerator seconds in the ledger. A torn, copied or lost segment never makes the bill count twice."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from episodes import a_group
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.billing.segments import by_name, decode, encode
from headway_api import prices
from headway_api.accelerators import Holder
from headway_api.artifacts import Layout
from headway_api.config import Identity
from headway_api.exits import JobError
from headway_api.prices import cost_by_day
from headway_api.records import UsageClass, UsageEvent
from headway_api.store import FileStore
from headway_coordinator import status
from headway_coordinator.ledger import costs
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.ledger.usage import usage
from headway_coordinator.stored_job import KubernetesJob

LEARNER, ROLLOUT = Holder("learner", "NVIDIA-H100"), Holder("rollout", "nvidia.com/gpu")
NOON = datetime(2026, 11, 3, 12, tzinfo=UTC).timestamp()
DAY = date(2026, 11, 3)


def ledger(folder: Path) -> Ledger:
    found = Ledger(FileStore(), Layout(f"file://{folder}", "ns", "job", "uid"))
    found.load()
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.rglob("usage/*.jsonl"))


def counted(book: Ledger) -> float:
    return sum(totals.get(UsageClass.ACCELERATOR_SECONDS, 0) for totals in book.days.values())


def test_repeated_totals_count_nothing_and_a_restart_resumes(tmp_path: Path) -> None:
    first = ledger(tmp_path)
    first.accelerators({LEARNER: 120}, NOON)
    first.accelerators({LEARNER: 120}, NOON + 60)
    again = ledger(tmp_path)
    assert again.accelerator_totals() == {LEARNER: 120}
    again.accelerators({LEARNER: 180, ROLLOUT: 7}, NOON + 120)
    assert again.accelerator_totals() == ledger(tmp_path).accelerator_totals() == {LEARNER: 180, ROLLOUT: 7}
    assert [path.name for path in segments(tmp_path)] == [
        "accelerators-000001.jsonl",
        "accelerators-000002.jsonl",
    ]
    events = [event for path in segments(tmp_path) for event in decode(path.read_bytes())]
    assert len({event.id for event in events}) == len(events) == 3
    assert (events[1].role, events[1].product, events[1].quantity) == ("learner", "NVIDIA-H100", 60)


def test_superseded_process_and_its_successor_count_once(tmp_path: Path) -> None:
    old, new = ledger(tmp_path), ledger(tmp_path)
    old.accelerators({LEARNER: 100}, NOON)
    new.accelerators({LEARNER: 130}, NOON + 1)
    assert new.accelerator_totals() == {LEARNER: 100}, "what stands is the other's"
    new.accelerators({LEARNER: 130}, NOON + 2)
    assert new.accelerator_totals() == ledger(tmp_path).accelerator_totals() == {LEARNER: 130}


def test_only_the_last_total_may_lower_the_bill(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.accelerators({LEARNER: 100}, NOON)
    book.accelerators({LEARNER: 98}, NOON + 60)
    assert counted(book) == 100
    book.accelerators({LEARNER: 99}, NOON + 120, last=True)
    assert counted(book) == counted(ledger(tmp_path)) == 99
    assert [decode(path.read_bytes())[0].quantity for path in segments(tmp_path)] == [100, -1]


def test_the_next_total_makes_up_for_a_lost_segment(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    for minute in (1, 2, 3):
        book.accelerators({LEARNER: 60 * minute}, NOON + 60 * minute)
    segments(tmp_path)[1].unlink()
    again = ledger(tmp_path)
    assert counted(again) == 120
    again.accelerators({LEARNER: 240}, NOON + 240)
    assert counted(again) == counted(ledger(tmp_path)) == 240


@given(
    heard=st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 500), st.booleans()), min_size=1, max_size=12
    ),
)
def test_ledger_keeps_the_highest_total_through_restarts(
    tmp_path_factory: pytest.TempPathFactory, heard: list[tuple[int, int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    book = ledger(folder)
    for number, (learner, rollout, restarts) in enumerate(heard):
        book = ledger(folder) if restarts else book
        book.accelerators({LEARNER: learner, ROLLOUT: rollout}, NOON + number)
    found = ledger(folder).accelerator_totals()
    assert found.get(LEARNER, 0) == max(learner for learner, _, _ in heard)
    assert found.get(ROLLOUT, 0) == max(rollout for _, rollout, _ in heard)


def test_status_and_metrics_show_held_accelerator_seconds(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.accelerators({LEARNER: 100, ROLLOUT: 20}, NOON)
    assert usage(book.days, prices.DEFAULT, DAY).accelerator_seconds == "120"
    shown = [*costs.samples(book.used(), book.accelerator_totals(), prices.DEFAULT)]
    held = [(each.labels, each.value) for each in shown if each.name == "usage/accelerator_seconds"]
    assert held == [
        ({"role": "learner", "product": "NVIDIA-H100"}, 100),
        ({"role": "rollout", "product": "nvidia.com/gpu"}, 20),
    ]


def test_a_job_without_accelerators_reports_none(tmp_path: Path) -> None:
    assert usage(ledger(tmp_path).days, prices.DEFAULT, DAY).accelerator_seconds is None


@given(
    used=st.dictionaries(
        st.dates(date(2026, 1, 1), date(2027, 1, 1)),
        st.dictionaries(
            st.sampled_from([*UsageClass]), st.integers(0, 10**10).map(lambda tenths: tenths / 10)
        ),
        max_size=4,
    )
)
def test_the_parts_of_the_cost_are_the_whole_to_the_last_digit(
    used: dict[date, dict[UsageClass, float]],
) -> None:
    whole = cost_by_day(by_name(used, {}), prices.DEFAULT)
    parts = costs.by_kind(by_name(used, {}), prices.DEFAULT)
    with localcontext(prices.EXACT):
        assert sum(parts.values(), Decimal(0)) == whole
    assert set(parts) == {*costs.KINDS.values()}


def test_every_usage_class_has_a_kind_of_cost() -> None:
    assert set(costs.KINDS) == {*UsageClass}


def test_segments_of_an_earlier_version_are_read() -> None:
    line = b'{"id":"t0-000000.0/0/sample","usage_class":"sample","quantity":3.0,"at":1.0}\n'
    (event,) = decode(line)
    assert (event.role, event.product) == (None, None)
    assert encode([event]) == line


@pytest.mark.parametrize("keep", [0, 1, -1, -20])
def test_a_torn_segment_is_named_with_the_fix(tmp_path: Path, keep: int) -> None:
    ledger(tmp_path).group(a_group("t0-000000", [0.0, 1.0]))
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(JobError) as caught:
        ledger(tmp_path)
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("RecordUnreadable", "spec.output.uri")
    assert path.name in termination.message
    assert "restore what the job wrote there" in termination.message


def test_an_event_repeated_in_a_segment_is_named(tmp_path: Path) -> None:
    ledger(tmp_path).group(a_group("t0-000000", [0.0, 1.0]))
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes() + path.read_bytes())
    with pytest.raises(JobError, match=r"t0-000000\.jsonl cannot be read: event .* is in it twice"):
        ledger(tmp_path)


def test_a_copied_segment_is_named_and_not_billed(tmp_path: Path) -> None:
    ledger(tmp_path).group(a_group("t0-000000", [0.0, 1.0]))
    (path,) = segments(tmp_path)
    path.with_name("t0-000000-copy.jsonl").write_bytes(path.read_bytes())
    with pytest.raises(JobError) as caught:
        ledger(tmp_path)
    termination = caught.value.termination
    assert termination.reason == "LedgerDuplicated"
    assert {
        name for name in ("/t0-000000.jsonl", "/t0-000000-copy.jsonl") if name in termination.message
    } == {
        "/t0-000000.jsonl",
        "/t0-000000-copy.jsonl",
    }
    assert "delete the one that the job did not write" in termination.message


def test_ledger_lists_the_groups_that_have_no_segment(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.group(a_group("t0-000000", [0.0, 1.0]))
    assert book.lost(["t0-000000", "t0-000001"]) == ["t0-000001"]


class Api:
    def __init__(self, accelerators: Any) -> None:
        self._accelerators = accelerators

    def patch_namespaced_custom_object_status(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        return {"status": {"accelerators": self._accelerators}}


def heard(accelerators: Any) -> Mapping[Holder, int]:
    job = Identity(name="job", namespace="ns", uid="uid", kind="RLTrainingJob")
    found = status.sink_of(KubernetesJob(job, Api(accelerators)))({})
    assert found is not None
    return found.accelerator_seconds


def test_accelerator_seconds_are_read_from_the_jobs_status() -> None:
    pod = {"uid": "a", "role": "learner", "product": "H100", "count": 8, "since": "2026-11-03T12:00:00Z"}
    past = {"role": "learner", "product": "H100", "seconds": "100"}
    accelerators = {"seenTime": "2026-11-03T12:01:00Z", "totals": [past], "pods": [pod]}
    assert heard(accelerators) == {Holder("learner", "H100"): 100 + 8 * 60}


@pytest.mark.parametrize(
    "accelerators", [{}, {"seenTime": "soon"}, [], {"seenTime": "2026-11-03T12:01:00Z", "pods": [{}]}]
)
def test_unreadable_accelerator_counts_are_skipped(accelerators: Any) -> None:
    assert heard(accelerators) == {}


def test_an_event_of_accelerators_is_read_back() -> None:
    event = UsageEvent(
        id="accelerators-000001/learner/H100", usage_class=UsageClass.ACCELERATOR_SECONDS,
        quantity=1, at=0, role="learner", product="H100",
    )  # fmt: skip
    assert decode(encode([event])) == [event]
