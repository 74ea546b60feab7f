"""A job's signals in status, conditions and metrics. A restart does not change them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flat_job import STEPS, config, run
from role_keys import KEYS

from headway_analysis.signals.definition import Level, Reading, Signal
from headway_analysis.signals.history import History
from headway_analysis.signals.standing import SignalTrack
from headway_analysis.signals.watch import Verdict
from headway_api.conditions import ConditionType, find
from headway_api.signals import SignalName
from headway_api.status import RLTrainingJobStatus
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.signals import Signals, healthy, message, shown


def of_signal(status: RLTrainingJobStatus, name: SignalName) -> dict[str, Any]:
    return next(signal.as_object() for signal in status.signals if signal.name == name)


async def test_a_raised_signal_remains_raised_after_a_restart(tmp_path: Path) -> None:
    first = await run(tmp_path, config(tmp_path), None, 3)
    before = first.status()
    found = of_signal(before, SignalName.NOTHING_TO_TRAIN)
    assert (found["state"], found["since"]) == ("Raised", 3)
    assert "First: " in found["message"]
    condition = find(before.conditions, ConditionType.HEALTHY)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "NothingToTrain")
    text = first._exporter.text().decode()
    assert 'headway_signal_state{job_name="job",namespace="ns",signal="NothingToTrain"} 2.0' in text

    second = await run(tmp_path, config(tmp_path), before, None)
    found = of_signal(second.status(), SignalName.NOTHING_TO_TRAIN)
    assert (found["state"], found["since"]) == ("Raised", 3)
    assert len(FileStore().list(second.layout.all_batch_metrics)) == STEPS


async def test_missing_batch_metrics_are_recomputed_after_a_restart(tmp_path: Path) -> None:
    first = await run(tmp_path, config(tmp_path), None, 4)
    store = FileStore()
    store.delete(store.list(first.layout.all_batch_metrics))
    second = await run(tmp_path, config(tmp_path), first.status(), None)
    found = of_signal(second.status(), SignalName.NOTHING_TO_TRAIN)
    assert (found["state"], found["since"]) == ("Raised", 3)
    assert len(store.list(second.layout.all_batch_metrics)) == STEPS


async def test_a_successor_shows_earlier_signals_until_it_has_its_own(tmp_path: Path) -> None:
    first = await run(tmp_path, config(tmp_path), None, 3)
    previous = first.status()
    fresh = Coordinator(config(tmp_path), KEYS, FileStore(), tmp_path, lambda status: None, previous=previous)
    assert fresh.status().signals == previous.signals
    assert find(fresh.status().conditions, ConditionType.HEALTHY) == find(
        previous.conditions, ConditionType.HEALTHY
    )


def a_verdict(state: Any, name: SignalName = SignalName.REWARD_FLAT, **reading: Any) -> Verdict:
    words = dict.fromkeys(
        ("meaning", "number", "threshold", "reason", "source", "confirmed_by"), "some words"
    )
    signal = Signal(name=name, judge=no_judge, look_at=(), advice="Mend it.", **words)
    seen = Reading(
        **{"level": Level.OVER, "value": 0.5, "threshold": 0.25, "observed": "x is 0.5", **reading}
    )
    return Verdict(signal, SignalTrack(state=state, since=7, reading=None if state == "Unknown" else seen))


def no_judge(history: History) -> Reading | None:
    return None


def test_status_shows_the_number_its_interval_and_the_advice() -> None:
    assert shown(a_verdict("Raised", low=0.4, high=0.6)).as_object() == {
        "name": "RewardFlat", "state": "Raised", "since": 7, "value": "0.5 (0.4 to 0.6)", "threshold": "0.25",
        "message": "x is 0.5. First: Mend it.",
    }  # fmt: skip
    assert shown(a_verdict("Clear")).message == "x is 0.5"
    assert shown(a_verdict("Unknown")).as_object() == {
        "name": "RewardFlat", "state": "Unknown", "since": 7, "message": "",
    }  # fmt: skip


def test_condition_reason_is_gravest_signal_and_all_are_named() -> None:
    raised = [a_verdict("Raised", SignalName.ENTROPY_RISING), a_verdict("Raised", SignalName.REWARD_FLAT)]
    condition = healthy([*raised, a_verdict("Clear", SignalName.REPETITION)])
    assert (condition.status, condition.reason) == ("False", "EntropyRising")
    assert condition.message == "; ".join(f"{v.signal.name}: {message(v)}" for v in raised)
    assert healthy([a_verdict("Suspect")]).status == "True"
    assert healthy([a_verdict("Unknown")]).status == "Unknown"


def test_status_has_room_for_sixteen_signals(tmp_path: Path) -> None:
    signals = Signals(config(tmp_path).spec)
    assert len(signals.status()) == 16
    assert not signals.metrics("step")
    assert not [*samples(signals)]


def samples(signals: Signals) -> Iterator[Any]:
    return signals.samples()


def test_an_unchanged_condition_keeps_its_transition_time(tmp_path: Path) -> None:
    signals = Signals(config(tmp_path).spec)
    first = signals.condition()
    earlier = first.model_copy(update={"last_transition_time": first.last_transition_time.replace(year=2020)})
    assert Signals(config(tmp_path).spec, [earlier]).condition() == earlier


@pytest.mark.parametrize("state", ["Raised", "Suspect"])
def test_a_long_message_is_shortened_to_fit_the_status(state: Any) -> None:
    assert len(shown(a_verdict(state, observed="x" * 5000)).message) == 1024
