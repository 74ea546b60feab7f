"""The bill: events are pure functions of records, each segment is written once, and totals add up."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path

import pytest
from episodes import CACHED, PROMPT, SAMPLED, a_group, given_up, sealed, version
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.billing.segments import decode, encode, fold, total
from headway_api import prices
from headway_api.artifacts import Layout
from headway_api.records import (
    Abandoned,
    AbandonReason,
    Canary,
    GroupRecord,
    Outcome,
    Purpose,
    StepReport,
    UsageClass,
    WeightsManifest,
)
from headway_api.store import FileStore
from headway_coordinator.ledger import events
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.ledger.usage import usage

REWARDS = st.lists(st.sampled_from([None, 0.0, 1.0]), min_size=2, max_size=5)


def report(step: int, tokens: dict[str, int]) -> StepReport:
    canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=0.1)
    weights = WeightsManifest(version=version(step), kind="lora", uri="file:///w", files=[], canary=canary)
    return StepReport(
        step=step,
        version=version(step),
        groups=list(tokens),
        train_tokens=tokens,
        weights=weights,
        durable=step,
        metrics={},
    )


def totals(group: GroupRecord) -> dict[UsageClass, float]:
    return total(fold(events.of_group(group)))


@given(rewards=REWARDS, retried=st.integers(0, 3), purpose=st.sampled_from(list(Purpose)))
def test_every_token_is_counted_once_and_in_one_class(
    rewards: list[float | None], retried: int, purpose: Purpose
) -> None:
    group = a_group("t0-000000", rewards, purpose=purpose, retried=retried)
    found = events.of_group(group)
    assert len({event.id for event in found}) == len(found)
    counted = totals(group)
    used = sum(
        turn.prompt_tokens + turn.sampled_tokens
        for episode in group.episodes + group.discarded
        for turn in episode.turns
    )
    thrown_away = [e for e in group.episodes if e.reward is None or group.abandoned] + group.discarded
    cached = sum(turn.cached_tokens for episode in thrown_away for turn in episode.turns)
    tokens = sum(n for name, n in counted.items() if name is not UsageClass.SANDBOX_SECONDS)
    assert tokens + cached == used


def test_a_turn_is_prefill_cached_prefill_and_sample() -> None:
    counted = totals(a_group("t0-000000", [0.0, 1.0]))
    second = PROMPT + SAMPLED + 2
    assert counted[UsageClass.PREFILL] == 2 * (PROMPT + second - CACHED)
    assert counted[UsageClass.CACHED_PREFILL] == 2 * CACHED
    assert counted[UsageClass.SAMPLE] == 2 * 2 * SAMPLED
    assert counted[UsageClass.SANDBOX_SECONDS] == 3.0
    assert counted[UsageClass.DISCARDED] == 0


def test_failed_episodes_are_discarded_and_not_billed() -> None:
    counted = totals(a_group("t0-000000", [1.0, 1.0, None], retried=1))
    one = PROMPT + (PROMPT + SAMPLED + 2 - CACHED) + 2 * SAMPLED
    assert counted[UsageClass.DISCARDED] == 2 * one
    assert counted[UsageClass.SANDBOX_SECONDS] == 3.0


@pytest.mark.parametrize("purpose", [Purpose.TRAIN, Purpose.VALIDATION])
def test_a_turn_that_never_reached_its_agent_is_discarded(purpose: Purpose) -> None:
    group = a_group("t0-000000", [1.0, 0.0, None], purpose=purpose)
    read, whole = totals(group), sum(totals(group).values())
    group = group.model_copy(update={"episodes": [given_up(episode) for episode in group.episodes]})
    counted, lost = totals(group), PROMPT + SAMPLED
    prefill, cached, sample = events._CLASSES[purpose]
    assert counted[prefill] == read[prefill] - 2 * PROMPT
    assert counted[cached] == read[cached]
    assert counted[sample] == read[sample] - 2 * SAMPLED
    assert counted[UsageClass.DISCARDED] == read[UsageClass.DISCARDED] + 2 * lost
    assert sum(counted.values()) == whole
    why = events.discarded_tokens(group)
    assert why["Undelivered"] == 2 * lost
    assert why.total() == counted[UsageClass.DISCARDED]


def test_an_abandoned_group_costs_nothing() -> None:
    counted = totals(a_group("t0-000000", [1.0, None]))
    assert {name for name, n in counted.items() if n} == {UsageClass.DISCARDED}


def test_validation_is_billed_in_classes_of_its_own() -> None:
    counted = totals(a_group("v000000-000000", [1.0], purpose=Purpose.VALIDATION))
    assert counted[UsageClass.EVALUATION_SAMPLE] == 2 * SAMPLED
    assert counted[UsageClass.SAMPLE] == 0


def test_an_evaluation_is_billed_like_a_validation() -> None:
    counted = totals(a_group("e-tuned-000000", [1.0, None], purpose=Purpose.EVALUATION, retried=1))
    first, second = PROMPT, PROMPT + SAMPLED + 2
    assert counted[UsageClass.EVALUATION_PREFILL] == first + second - CACHED
    assert counted[UsageClass.EVALUATION_CACHED_PREFILL] == CACHED
    assert counted[UsageClass.EVALUATION_SAMPLE] == 2 * SAMPLED
    assert counted[UsageClass.DISCARDED] == 2 * (first + second - CACHED + 2 * SAMPLED)
    assert counted[UsageClass.ENDPOINT_PROMPT] == counted[UsageClass.ENDPOINT_SAMPLE] == 0


def elsewhere(sampled_by: str) -> GroupRecord:
    """A group with a scored, a lost and a retried episode."""
    group = a_group("e-other-000000", [1.0, None], purpose=Purpose.EVALUATION, retried=1)
    return group.model_copy(update={"sampled_by": sampled_by})


def test_tokens_of_an_endpoint_keep_their_own_class() -> None:
    group = elsewhere("endpoint")
    counted = totals(group)
    assert {name: n for name, n in counted.items() if n} == {
        UsageClass.ENDPOINT_PROMPT: 3 * (PROMPT + PROMPT + SAMPLED + 2),
        UsageClass.ENDPOINT_SAMPLE: 3 * 2 * SAMPLED,
        UsageClass.SANDBOX_SECONDS: 1.5,
    }
    assert events.discarded_tokens(group) == {}
    found = events.of_group(group)
    assert len({event.id for event in found}) == len(found)
    shown = usage(fold(found), prices.DEFAULT, date(2026, 11, 21))
    assert shown.endpoint_tokens == 3 * (2 * PROMPT + SAMPLED + 2 + 2 * SAMPLED)
    assert (shown.evaluation_tokens, shown.discarded_tokens, shown.total_tokens) == (0, 0, 0)


def test_scoring_again_costs_only_the_sandbox() -> None:
    group = elsewhere("nobody")
    assert {name: n for name, n in totals(group).items() if n} == {UsageClass.SANDBOX_SECONDS: 1.5}
    assert events.discarded_tokens(group) == {}


def test_an_agents_own_failure_is_billed() -> None:
    group = a_group("t0-000000", [1.0, 0.0])
    failed = sealed("t0-000000", 1, reward=0.0, outcome=Outcome.AGENT_ERROR)
    group = group.model_copy(update={"episodes": [group.episodes[0], failed]})
    assert totals(group)[UsageClass.SAMPLE] == 4 * SAMPLED


def test_a_step_bills_the_tokens_of_its_backward_pass() -> None:
    found = events.of_step(report(3, {"t0-000000": 40, "t0-000001": 0}), at=5.0)
    assert [(e.id, e.quantity) for e in found] == [("t0-000000/step-3/train", 40)]
    assert decode(encode(found)) == found


def test_a_rewrite_adds_nothing_and_a_restart_reads_the_same(tmp_path: Path) -> None:
    layout = Layout(f"file://{tmp_path}", "ns", "job", "uid")
    ledger = Ledger(FileStore(), layout)
    groups = [a_group(f"t0-{i:06d}", [0.0, 1.0], retried=i) for i in range(3)]
    for group in groups + groups:
        ledger.group(group)
    for _ in range(2):
        ledger.step(report(1, {"t0-000000": 40, "t0-000001": 2}), at=1_700_000_003.0)
    expected = Counter[UsageClass]()
    for group in groups:
        expected.update(totals(group))  # type: ignore[arg-type]
    expected[UsageClass.TRAIN] = 42
    assert total(ledger.days) == dict(expected)
    assert ledger.episodes == 6

    again = Ledger(FileStore(), layout)
    again.load()
    again.group(groups[0])
    assert total(again.days) == total(ledger.days)
    assert again.episodes == 6


def test_the_first_version_of_a_segment_is_kept(tmp_path: Path) -> None:
    layout = Layout(f"file://{tmp_path}", "ns", "job", "uid")
    first, second = Ledger(FileStore(), layout), Ledger(FileStore(), layout)
    first.step(report(1, {"t0-000000": 40}), at=1.0)
    second.step(report(1, {"t0-000000": 40}), at=2.0e9)
    assert second.days == first.days


def test_usage_shows_the_classes_and_their_cost() -> None:
    days = fold(
        events.of_group(a_group("t0-000000", [0.0, 1.0]))
        + events.of_step(report(1, {"t0-000000": 10**6}), 1.7e9)
    )
    shown = usage(days, prices.DEFAULT, date(2026, 11, 21))
    assert shown.train_tokens == 10**6
    assert shown.sample_tokens == 4 * SAMPLED
    assert shown.sandbox_seconds == "3"
    assert shown.cost == "0.40"
    assert shown.price_book == "default@2026-01-01"


@pytest.mark.parametrize("reason", ["TooOld", "RolledBack", "NoStepLeft"])
@pytest.mark.parametrize("turns", [0, 2])
def test_bill_of_a_group_is_withdrawn_when_it_is_given_up(
    tmp_path: Path, reason: AbandonReason, turns: int
) -> None:
    """The bill is withdrawn even if no agent took a turn, in which case no tokens count as discarded."""
    store, layout = FileStore(), Layout(f"file://{tmp_path}", "ns", "job", "uid")
    episodes = [sealed("t0-000000", index, turns=turns) for index in range(2)]
    group = a_group("t0-000000", [1.0, 0.0]).model_copy(update={"episodes": episodes})
    ledger = Ledger(store, layout)
    ledger.group(group)
    assert (ledger.episodes, total(ledger.days)[UsageClass.SANDBOX_SECONDS]) == (2, 3.0)
    late = group.model_copy(update={"abandoned": Abandoned(reason=reason, message="late")})
    for _ in range(2):
        ledger.group(late)
        assert ledger.episodes == 0
        assert total(ledger.days) == totals(late)
    successor = Ledger(store, layout)
    successor.load()
    successor.group(late)
    assert total(successor.days) == totals(late)


def test_an_abandoned_group_without_usage_has_no_bill(tmp_path: Path) -> None:
    ledger = Ledger(FileStore(), Layout(f"file://{tmp_path}", "ns", "job", "uid"))
    none = a_group("t0-000000", []).model_copy(
        update={"abandoned": Abandoned(reason="RolledBack", message="late")}
    )
    ledger.group(none)
    assert ledger.days == {}
