"""Every signal is defined and documented, and bad input neither breaks nor raises it."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headway_analysis.signals import page
from headway_analysis.signals.catalogue import SIGNALS
from headway_analysis.signals.definition import Signal
from headway_analysis.signals.history import Job
from headway_analysis.signals.judges import learning
from headway_analysis.signals.watch import Watch
from headway_api.crd import definitions
from headway_api.metrics import FAMILIES, family
from headway_api.signals import SignalName

ROOT = Path(__file__).parents[3]
JOB = Job(reward_low=0.0, reward_high=1.0, max_steps_off_policy=3, max_turns=8)
UNVALIDATED = replace(JOB, validates=False)
WORDS = 25


def texts(signal: Signal) -> Iterator[str]:
    """All texts of a signal that people read."""
    yield from (signal.meaning, signal.number, signal.threshold, signal.reason, signal.source, signal.advice)
    yield from signal.look_at
    yield signal.confirmed_by


def read_metrics() -> list[str]:
    """Names of the metrics that signals read, with a job's own names filled in."""
    found = [
        known.name for known in FAMILIES if known.name.startswith(("rollout/", "training/", "episodes/"))
    ]
    found += [known.name for known in FAMILIES if known.name.startswith(("analysis/", "staleness/", "val/"))]
    return [name.replace("{name}", each).replace("{k}", "1") for name in found for each in ("even", "odd")]


NAMES = sorted({*read_metrics()})


def test_each_signal_is_defined_once_with_the_gravest_first() -> None:
    assert [signal.name for signal in SIGNALS] == [*SignalName]


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_a_signals_texts_name_existing_metrics_and_fields(signal: Signal) -> None:
    fields = set(spec_fields())
    for text in texts(signal):
        for name in re.findall(
            r"`((?:training|rollout|analysis|episodes|staleness|val|timing_s)/[^`]+)`", text
        ):
            assert matches(name), name
        for path in re.findall(r"\bspec(?:\.[a-z][A-Za-z]*)+", text):
            assert path in fields, path


def matches(name: str) -> bool:
    """Whether a metric has this name; `*` stands for any name."""
    return family(name.replace("*", "any")) is not None


def spec_fields() -> Iterator[str]:
    """Paths of the fields of a training job's spec."""

    def below(block: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, field in block.get("properties", {}).items():
            yield f"{path}.{name}"
            yield from below(field, f"{path}.{name}")

    [crd] = [each for each in definitions() if each["spec"]["names"]["kind"] == "RLTrainingJob"]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    yield from below(schema["properties"]["spec"], "spec")


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_a_signals_sentences_are_short(signal: Signal) -> None:
    for text in texts(signal):
        for sentence in re.split(r"(?<=[.:;?])\s+", text):
            assert len(sentence.split()) <= WORDS, sentence


def test_generated_pages_and_alerts_of_signals_are_current() -> None:
    stale = [str(path) for path, text in page.files() if (ROOT / path).read_text() != text]
    assert not stale, "run make signals"
    runbooks = {path.name for path, _ in page.files() if path.parent.name == "runbooks"}
    assert runbooks == {f"Headway{name}.md" for name in SignalName}
    alerts = yaml.safe_load((ROOT / "charts/headway/files/signals.yaml").read_text())
    assert [each["name"] for each in alerts] == [*SignalName]


numbers = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0, -1.0, 1e300, -1e300, 5e-324]), st.floats()
)
steps = st.lists(
    st.dictionaries(st.sampled_from(NAMES), numbers, max_size=60) | st.just({}), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 3))
def test_no_metric_breaks_a_judge(found: list[dict[str, float]], stutter: int) -> None:
    watch = Watch(JOB)
    for step, metrics in enumerate(found * 3, 1):
        watch.step(step, metrics)
        watch.validation(step, metrics)
        for back in range(stutter):
            watch.step(max(1, step - back), metrics)
    for verdict in watch.verdicts():
        reading = verdict.standing.reading
        if reading is not None:
            assert math.isfinite(reading.value)
            assert math.isfinite(reading.threshold)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metrics_that_are_not_numbers_raise_nothing(value: float) -> None:
    watch = Watch(JOB)
    for step in range(1, 60):
        watch.step(step, dict.fromkeys(NAMES, value))
        watch.validation(step, dict.fromkeys(NAMES, value))
    assert {verdict.standing.state for verdict in watch.verdicts()} == {"Unknown"}


def test_a_reward_that_is_not_a_number_breaks_no_signal() -> None:
    """No step has a reward then, so no step is among the first ones."""
    shares = {"rollout/reward_explained/a": 0.5, "rollout/reward_explained/b": 0.4}
    watch = Watch(JOB)
    for step in range(1, 30):
        watch.step(step, {"rollout/reward/mean": math.nan, **shares})
    states = {verdict.signal.name: verdict.standing.state for verdict in watch.verdicts()}
    assert states[SignalName.REWARD_ONE_SIDED] == "Clear"


@pytest.mark.parametrize("rows", [0.0, -4.0, -1e15, 5e-324])
def test_a_validation_without_rows_says_nothing(rows: float) -> None:
    watch = Watch(JOB)
    for step in range(1, 40):
        watch.step(step, {"rollout/reward/mean": step / 40})
        metrics = {"mean": 0.1, "std": 0.1, "num_prompts": rows}
        watch.validation(step, {f"val/reward/{name}": value for name, value in metrics.items()})
    states = {verdict.signal.name: verdict.standing.state for verdict in watch.verdicts()}
    assert states[SignalName.VALIDATION_DIVERGED] in ("Unknown", "Clear")


def healthy(step: int) -> dict[str, float]:
    """Metrics of a job that learns a little at each step."""
    return {
        "rollout/reward/mean": min(0.9, 0.3 + 0.02 * step),
        "rollout/reward/std": 0.4,
        "rollout/external_score/mean": min(0.9, 0.3 + 0.02 * step),
        "analysis/batch_valid_ratio": 0.75,
        "analysis/zero_adv_groups": 2.0,
        "training/num_groups": 8.0,
        "training/num_trajectories": 32.0,
        "training/entropy": 1.0,
        "training/grad_norm": 0.5,
        "training/mismatch_kl": 1e-4,
        "training/mismatch_far_share": 0.0,
        "training/effective_sample_share": 0.99,
        "training/clip_fraction": 0.01,
        "training/masked_fraction": 0.0,
        "staleness/lag_mean": 1.0,
        "rollout/tokens/response_mean": 40.0,
        "rollout/tool_calls/mean": 2.0,
        "rollout/repetition/mean": 0.0,
        "episodes/max_tokens_rate": 0.0,
        "episodes/context_limit_rate": 0.0,
        "episodes/time_limit_rate": 0.0,
        "episodes/turn_limit_rate": 0.0,
        "episodes/outcome_InfraError_rate": 0.0,
        "episodes/malformed_tool_call_rate": 0.0,
    }


def raised(watch: Watch) -> set[str]:
    return {verdict.signal.name for verdict in watch.verdicts() if verdict.standing.state == "Raised"}


def test_a_job_that_learns_raises_nothing() -> None:
    watch = Watch(UNVALIDATED)
    for step in range(1, 60):
        watch.step(step, healthy(step))
        assert not raised(watch)
    known = {verdict.signal.name for verdict in watch.verdicts() if verdict.standing.state == "Clear"}
    unknown = {SignalName.VALIDATION_DIVERGED, SignalName.TASKS_DIVERGING, SignalName.REWARD_ONE_SIDED}
    assert known == {*SignalName} - unknown


def test_a_job_of_three_steps_says_only_what_three_steps_can() -> None:
    watch = Watch(JOB)
    for step in range(1, 4):
        watch.step(step, healthy(step) | {"rollout/reward/mean": 0.5, "rollout/reward/std": 0.0})
    assert not raised(watch)


def with_luck(step: int) -> bool:
    """Whether a step's metrics exist, if one step in twelve is lost by chance."""
    return random.Random(step).random() > 1 / 12


@pytest.mark.parametrize(
    "had", [lambda step: step % 7 == 1, lambda step: step % 3 != 0, lambda step: step % 17 < 12, with_luck]
)
def test_steps_that_are_missing_raise_nothing(had: Callable[[int], bool]) -> None:
    watch = Watch(JOB)
    for step in filter(had, range(1, 200)):
        watch.step(step, healthy(step))
        assert not raised(watch)


@pytest.mark.parametrize("had", [lambda step: step % 17 < 12, with_luck], ids=["gaps", "luck"])
def test_signals_are_raised_between_missing_steps(had: Callable[[int], bool]) -> None:
    """Every window is full at some time, and is judged then. No other signal is raised."""
    watch = Watch(UNVALIDATED)
    for step in filter(had, range(1, 200)):
        sick = {"training/mismatch_kl": 0.5, "staleness/lag_mean": 3.0} if step > 100 else {}
        watch.step(step, healthy(step) | sick)
        assert step > 100 or not raised(watch)
    assert raised(watch) == {"PolicyMismatch", "StalenessAtBound"}
    states = Counter(verdict.standing.state for verdict in watch.verdicts())
    assert states["Unknown"] == 3, (
        "held-out rows, tasks and numbers of the reward, as where nothing is missing"
    )


OF_REWARD = [signal for signal in SIGNALS if signal.name in ("RewardFlat", "RewardCollapsed")]


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=30, max_size=60),
    st.lists(st.integers(1, 60), max_size=5, unique=True),
)
def test_a_rise_of_the_reward_is_found_in_any_order(
    rewards: list[tuple[int, float]], validated: list[int]
) -> None:
    """A result is kept only as long as it is true, so a new watch finds the same.

    Only the signals that read these metrics are evaluated. At each late step all steps are judged again. All
    signals together would exceed the time limit of an example on a busy machine.
    """
    for job in (JOB, UNVALIDATED):
        live, fresh = Watch(job, OF_REWARD), Watch(job, OF_REWARD)
        for step, reward in rewards:
            live.step(step, {"rollout/reward/mean": reward})
        for step in validated:
            live.validation(step, {"val/reward/mean": 0.5})
        for step, reward in sorted(dict(rewards).items()):
            fresh.step(step, {"rollout/reward/mean": reward})
            if step in validated:
                fresh.validation(step, {"val/reward/mean": 0.5})
        for step in {*validated} - dict(rewards).keys():
            fresh.validation(step, {"val/reward/mean": 0.5})
        assert {v.signal.name: v.standing for v in live.verdicts()} == {
            v.signal.name: v.standing for v in fresh.verdicts()
        }


def test_a_repeated_step_has_no_window_compared_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=learning.shift)
    monkeypatch.setattr(learning, "shift", counted)
    compared = []
    for steps in (50, 100, 200):
        watch = Watch(UNVALIDATED)
        for step in range(1, steps + 1):
            watch.step(step, {"rollout/reward/mean": 0.1 + 0.001 * (step % 7)})
        counted.reset_mock()
        watch.step(steps - 1, {"rollout/reward/mean": 0.09})
        compared.append(counted.call_count / steps)
    assert 1 < min(compared) <= max(compared) < 10, "so many comparisons a step, however many steps there are"


def test_operations_show_a_pause_in_the_words_of_its_sign() -> None:
    shown = re.findall(r"^(no .*)\. First: \.\.\.$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    watch = Watch(UNVALIDATED)
    for step in range(1, 4):
        watch.step(step, {"analysis/batch_valid_ratio": 0.0})
    observed = {v.standing.reading.observed for v in watch.verdicts() if v.standing.reading is not None}
    assert shown
    assert {*shown} <= observed


def test_a_job_that_never_validates_has_no_word_on_held_out_rows() -> None:
    watch = Watch(UNVALIDATED)
    for step in range(1, 60):
        watch.step(step, healthy(step))
    states = {verdict.signal.name: verdict.standing.state for verdict in watch.verdicts()}
    assert states[SignalName.VALIDATION_DIVERGED] == "Unknown"


@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0])
def test_constant_rewards_raise_the_signals_that_fit(reward: float) -> None:
    """If all rewards are equal and below the best, the reward is flat and nothing trains.

    If all are at the best, the task is solved.
    """
    watch = Watch(UNVALIDATED)
    alike = {"analysis/batch_valid_ratio": 0.0, "analysis/zero_adv_groups": 8.0}
    flat = {"rollout/reward/mean": reward, "rollout/reward/std": 0.0, **alike}
    for step in range(1, 60):
        watch.step(step, healthy(step) | flat | {"rollout/external_score/mean": reward})
    expected = {"RewardFlat", "NothingToTrain", "GroupsUniform"} if reward < 1 else set()
    assert raised(watch) == expected


def test_a_validating_job_is_flat_only_if_held_out_rows_are_too() -> None:
    """Small batches hide a rise that held-out rows show."""
    noisy = {"rollout/reward/mean": 0.5, "rollout/reward/std": 0.5}
    for held_out, expected in ((0.4, "Raised"), (0.6, "Clear")):
        watch = Watch(JOB)
        for step in range(1, 31):
            watch.step(step, healthy(step) | noisy | {"rollout/reward/mean": 0.5 + 0.2 * (-1) ** step})
            if step % 5 == 0:
                watch.validation(step, {"val/reward/mean": 0.4 if step < 20 else held_out})
        states = {verdict.signal.name: verdict.standing.state for verdict in watch.verdicts()}
        assert states[SignalName.REWARD_FLAT] == expected
