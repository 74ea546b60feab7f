"""The recorded series are complete, are read back unchanged, and cover every signal."""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.signals import describe, labels, read, record, rules, series, symptoms
from tests.signals.series import Expected, Known, Series, Step

from headway_api.metrics import family
from headway_api.signals import SignalName

LARGEST = 3 * 2**20
"""Bytes allowed for 500 runs of 6 kB each, and for the facts about them. `zcat` shows a run's metrics as
text."""
KNOWN = Known(
    steps=2,
    max_turns=6,
    batch_size=4,
    group_size=6,
    updates_per_batch=1,
    max_steps_off_policy=0,
    reward_range=(0.0, 1.0),
    loss="ppo",
    validation_every=5,
    has_tasks=False,
)
REWARD, SCORE = "rollout/reward/mean", "val/external_score/mean"


def a_run(steps: tuple[Step, ...], **given: object) -> Series:
    return Series(name="a", split="held_out", description="of thin air", known=KNOWN, steps=steps, **given)  # type: ignore[arg-type]


def test_a_series_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    expected = Expected(SignalName.REWARD_FLAT, 2, "it is so")
    steps = (
        Step(0, {}, {SCORE: 0.25}),
        Step(1, {REWARD: 0.12345, "training/mismatch_kl": 1.2346e-13}, None),
        Step(2, {REWARD: 1.0}, {SCORE: 0.0}),
    )
    written = a_run(steps, expected=(expected,), settings={"seed": 1})
    series.write(written, tmp_path)
    assert series.read_all(folder=tmp_path) == [written]


def test_the_same_metrics_make_the_same_bytes(tmp_path: Path) -> None:
    run = a_run((Step(1, {REWARD: 1.0}, None),))
    found = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        series.write(run, folder)
        found.append((folder / "held_out" / "a.csv.gz").read_bytes())
    assert found[0] == found[1]
    assert gzip.decompress(found[0]) == b"step,rollout/reward/mean\n1,1\n"
    assert found[0][4:8] == bytes(4), "a time of writing is in it"


def test_a_metric_that_a_step_lacks_is_not_a_key(tmp_path: Path) -> None:
    series.write(
        a_run((Step(1, {REWARD: 1.0, "training/entropy": 0.5}, None), Step(2, {REWARD: 0.0}, None))), tmp_path
    )
    [found] = series.read_all(folder=tmp_path)
    assert "training/entropy" not in found.steps[1].metrics
    assert found.curve("training/entropy") == [(1, 0.5)]


def test_a_run_recorded_again_replaces_the_first(tmp_path: Path) -> None:
    series.write(a_run((Step(1, {REWARD: 1.0}, None),)), tmp_path)
    series.write(a_run((Step(1, {REWARD: 0.5}, None),)), tmp_path)
    assert [s.curve(REWARD) for s in series.read_all(folder=tmp_path)] == [[(1, 0.5)]]


def test_only_finite_metrics_of_health_are_stored() -> None:
    given = {
        REWARD: 1.0,
        "training/entropy": math.nan,
        "timing_s/step": 1.0,
        "training/global_step": 3.0,
        "rollout/logprob/zero_count": 4.0,
        "rollout/tool_calls_of/get_case": 1.0,
        "val/external_score/pass_at_1": 0.5,
        "val/external_score/pass_power_1": 0.5,
    }
    assert series.kept(given) == {REWARD: 1.0, "val/external_score/pass_at_1": 0.5}


@pytest.mark.parametrize("split", ["chosen_on", "held_out"])
def test_every_signal_was_provoked(split: series.Split) -> None:
    least = {"chosen_on": 2, "held_out": 1}[split]
    found = Counter(signal for s in read.provoking(split) for signal in {e.signal for e in s.expected})
    assert {signal.value: found[signal] for signal in SignalName if found[signal] < least} == {}


@pytest.mark.parametrize(
    ("split", "least"),
    [("chosen_on", 34), ("held_out", 16), ("fresh", 16), ("unseen", 50), ("untouched", 75), ("sealed", 80)],
)
def test_there_are_enough_clean_runs(split: series.Split, least: int) -> None:
    assert len(read.clean(split)) >= least


@pytest.mark.parametrize("split", ["untouched", "sealed"])
def test_runs_that_are_recorded_are_the_first_ones_listed(split: series.Split) -> None:
    """So their results did not decide which runs are recorded."""
    listed = [run.name for run in record.every_run() if run.split == split]
    recorded = {s.name for s in read.all_series(split)}
    assert recorded == {*listed[: len(recorded)]}


def test_a_clean_run_ends_about_as_good_as_it_has_been() -> None:
    for s in read.clean():
        scores = [value for _, value in s.curve(SCORE)]
        assert scores[-1] >= max(scores) - 0.1, s.name
        assert scores[-1] >= scores[0], s.name
        assert all(score >= max(scores[: n + 1]) - 0.25 for n, score in enumerate(scores)), s.name


def test_a_symptom_begins_in_its_run_with_steps_left_to_show_it() -> None:
    for s in read.provoking():
        for each in s.expected:
            assert 1 <= each.begin <= s.steps[-1].step, s.name
            assert s.steps[-1].step >= each.begin + 5, (s.name, each)


def test_a_provoked_symptom_shows_in_the_raw_metrics() -> None:
    unseen = [(s.name, e.signal) for s in read.provoking() for e in s.expected if not symptoms.shows(s, e)]
    assert unseen == []


@pytest.mark.ci
def test_most_clean_runs_show_no_symptom() -> None:
    runs = read.clean()
    for signal in SignalName:
        begins = Expected(signal, 12, "nothing begins there")
        found = [s.name for s in runs if signal not in labels.present(s) and symptoms.shows(s, begins)]
        assert len(found) <= len(runs) / 4, (signal, found)


def test_every_step_is_there_once_and_in_order() -> None:
    for s in read.all_series():
        assert [step for step, _, _ in s.steps] == list(range(s.known.steps + 1)), s.name
        assert s.steps[0].validation, s.name
        assert s.steps[-1].validation, s.name


@pytest.mark.ci
def test_series_descriptions_match_the_runs_that_make_them() -> None:
    made = {run.name: run for run in record.every_run()}
    for s in read.all_series():
        expected = describe.described(made[s.name], s.steps)
        assert json.loads(json.dumps(asdict(expected))) == json.loads(json.dumps(asdict(s))), s.name
        assert expected.split == s.split


def test_every_recorded_name_is_a_metric() -> None:
    for name in {name for s in read.all_series() for name in series.columns(s.steps)}:
        family(name)


def test_the_series_are_small() -> None:
    assert sum(file.stat().st_size for file in series.FOLDER.rglob("*") if file.is_file()) < LARGEST


@pytest.mark.parametrize(
    ("rewards", "begin"), [([0.2, 0.8, 0.3, 0.19, 0.0], 4), ([0.0, 0.1, 0.2], None), ([0.5, 0.5], None)]
)
def test_a_collapse_begins_below_a_quarter_of_the_best_before(
    rewards: list[float], begin: int | None
) -> None:
    assert rules.collapses([{REWARD: reward} for reward in rewards]) == begin


def test_a_missing_metric_fulfils_no_rule() -> None:
    steps = [{"a": 1.0}, {}, {"a": 1.0}, {"a": 1.0}]
    assert rules.first("a", lambda value: value == 1, steps, times=2) == 3
    assert rules.first("a", lambda value: value == 1, steps, times=3) is None


def test_growth_is_relative_to_the_runs_first_steps() -> None:
    steps = [{"a": 1.0}] * 8 + [{"a": 2.9}, {"a": 3.0}]
    assert rules.grows("a", 3)(steps) == 10
    assert rules.shrinks("a", 2)([{"a": 1.0}] * 8 + [{"a": 0.5}] * 3) == 9


@pytest.mark.parametrize(
    ("entropy", "reward", "noise"),
    [
        ([1.0] * 12 + [10.0] * 3, [0.8] * 12 + [0.7] * 3, True),
        ([1.0] * 12 + [10.0] * 2 + [9.0], [0.8] * 12 + [0.7] * 3, False),
        ([1.0] * 12 + [10.0] * 3, [0.8] * 12 + [0.71] * 3, False),
        ([1.0] * 6 + [10.0] * 9, [0.8] * 6 + [0.7] * 9, False),
    ],
    ids=["both", "entropy-once-too-low", "reward-holds", "in-the-first-steps"],
)
def test_noise_is_a_high_entropy_with_a_falling_reward(
    entropy: list[float], reward: list[float], noise: bool
) -> None:
    steps = tuple(
        Step(number, {"training/entropy": each, REWARD: earned}, None)
        for number, (each, earned) in enumerate(zip(entropy, reward, strict=True), 1)
    )
    assert labels.becomes_noise(a_run(steps)) == noise


def of_metrics(**curves: list[float]) -> Series:
    """A run with these metrics from step 1 on. Step 0 has a validation alone."""
    names = {"valid": "analysis/batch_valid_ratio", "reward": REWARD, "calls": labels.MALFORMED}
    names["norm"] = labels.NORM
    steps = [
        Step(number, {names[name]: value for name, value in zip(curves, values, strict=True)}, None)
        for number, values in enumerate(zip(*curves.values(), strict=True), 1)
    ]
    return a_run((Step(0, {}, {SCORE: 0.5}), *steps))


@pytest.mark.parametrize(
    ("valid", "reward", "idle"),
    [
        ([0.0, 0.0, 0.0], [0.86, 0.87, 0.98], True),
        ([0.0, 0.0, 0.0], [0.94, 0.94, 0.98], False),
        ([0.0, 0.0, 0.25], [0.86, 0.87, 0.88], False),
        ([0.0, 0.0, 0.25, 0.0], [0.5, 0.5, 0.5, 0.5], False),
    ],
    ids=["one-lucky-batch", "solved", "two-batches", "not-in-a-row"],
)
def test_batches_idle_if_their_mean_reward_is_unsolved(
    valid: list[float], reward: list[float], idle: bool
) -> None:
    assert labels.idles(of_metrics(valid=valid, reward=reward)) == idle


@pytest.mark.parametrize(
    ("calls", "garbled"),
    [
        ([0.15] * 10 + [0.30] * 11 + [0.1], True),
        ([0.15] * 10 + [0.30] * 10 + [0.28], False),
        ([0.15] * 10 + [0.30] * 10, False),
        ([0.04] * 10 + [0.09] * 11 + [0.0], False),
        ([0.30] * 22, False),
    ],
    ids=["twice-as-many", "not-quite", "not-for-long", "few", "as-ever"],
)
def test_calls_are_malformed_if_their_rate_doubles(calls: list[float], garbled: bool) -> None:
    assert labels.garbles(of_metrics(calls=calls)) == garbled


@pytest.mark.parametrize(
    ("norm", "jumped"),
    [
        ([0.125] * 8 + [1.25, 1.25], True),
        ([0.125] * 8 + [1.25, 1.2, 1.25], False),
        ([0.1] * 8 + [1.0, 1.0], False),
        ([0.5] * 8 + [5.0, 0.5, 5.0], False),
    ],
    ids=["two-in-a-row", "one-too-low", "not-above-the-clip", "one-at-a-time"],
)
def test_two_norms_tenfold_and_above_the_clip_are_a_jump(norm: list[float], jumped: bool) -> None:
    assert labels.jumps(of_metrics(norm=norm)) == jumped


@pytest.mark.parametrize(
    ("reward", "apart"),
    [
        ([0.8] * 5 + [0.39] * 3 + [0.8] * 5, True),
        ([0.8] * 5 + [0.6, 0.1, 0.5] + [0.8] * 5, True),
        ([0.8] * 5 + [0.41] * 3 + [0.8] * 5, False),
        ([0.8] * 5 + [0.1] + [0.8] * 5, False),
        ([0.48] * 5 + [0.1] * 3, False),
        ([0.9, 0.1, 0.1, 0.1, 0.1], False),
    ],
    ids=["by-half", "on-average", "not-quite", "one-step", "no-plateau", "too-early"],
)
def test_a_policy_falls_apart_if_half_its_reward_is_lost(reward: list[float], apart: bool) -> None:
    assert labels.falls_apart(of_metrics(reward=reward)) == apart


def test_a_policy_that_falls_apart_shows_it_around_its_fall() -> None:
    rewards = [0.8] * 20 + [0.3] * 3 + [0.8] * 20
    steps = [
        Step(number, {REWARD: reward, "analysis/batch_valid_ratio": 1.0, labels.MALFORMED: 0.0}, None)
        for number, reward in enumerate(rewards, 1)
    ]
    found = a_run((Step(0, {}, {SCORE: 0.5, "val/reward/mean": 0.5}), *steps))
    assert labels.falls(found) == {21, 22, 23}
    for step, shown in ((10, False), (11, True), (33, True), (34, False)):
        assert labels.shows(found, SignalName.TOKENS_MASKED, step) == shown, step
        assert not labels.shows(found, SignalName.PERMANENT_FAILURES, step)
        assert labels.shows(found, SignalName.REWARD_COLLAPSED, step)


def test_half_a_rise_is_measured_over_five_steps() -> None:
    steps = [{REWARD: 0.0}] * 10 + [{REWARD: 1.0}] * 10
    assert rules.half_risen()(steps) == 13
