"""The estimated cost of training, from the tokens of the baseline and the prices of the bill."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from made_up_baselines import a_baseline, a_sample, an_episode

from headway_analysis.estimate.plan import Plan
from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import Baseline, Sampled
from headway_analysis.preflight.expected import groups
from headway_api.prices import DEFAULT, Prices, class_of
from headway_api.records import Judgement, Outcome
from headway_coordinator.ledger.events import of_group

JUDGED = Judgement(judge="style", question="0" * 64, prompt_tokens=300, sampled_tokens=10)
PRICES = DEFAULT.entries[0].prices.model_copy(update={"sandbox_seconds": "0"})


def group(number: int, *rewards: float, judged: bool = False) -> list[Sampled]:
    """Episodes of one group, each with one turn: 100 prompt tokens, 30 of them cached, and 20 sampled."""
    asked = [JUDGED] if judged else []
    episodes = []
    for index, reward in enumerate(rewards):
        episode = an_episode(group=number, index=index, reward=reward)
        turn = episode.turns[0].model_copy(update={"cached_tokens": 30})
        episodes.append(episode.model_copy(update={"turns": [turn], "judgements": asked}))
    found = [a_sample(episode, row_tokens=120) for episode in episodes]
    whole = found[0].group.model_copy(update={"episodes": episodes, "judgements": asked})
    return [replace(one, group=whole) for one in found]


def baseline(*groups: list[Sampled], prices: Prices | None = PRICES, **facts: object) -> Baseline:
    """A baseline of a job that trains on ten times as many episodes."""
    found = [one for each in groups for one in each]
    more = {
        "group_size": 2,
        "batch_size": len(groups),
        "max_steps": 10,
        "price_edition": "default@2026-01-01",
    }
    price = None if prices is None else lambda key: prices.by_class()[class_of(key)]
    return a_baseline(found, price=price, **{**more, **facts})


def cost_finding(of: Baseline) -> Finding:
    return BY_ID["throughput"].judge(of, ())


TEACHING = [group(number, 0.0, 1.0) for number in range(4)]
ALIKE = [group(number, 1.0, 1.0) for number in range(4, 8)]


def test_cost_is_that_of_the_bills_classes() -> None:
    finding = cost_finding(baseline(*TEACHING, *ALIKE))
    numbers = dict(finding.numbers)
    assert numbers["training_prefill_tokens"] == 160 * 70
    assert numbers["training_sampled_tokens"] == 160 * 20
    assert numbers["training_train_tokens"] == 80 * 120, "half of the groups have no gradient"
    sampled = (70 * 0.13 + 30 * 0.026 + 20 * 0.40) / 1e6
    expected = (160 + 16) * sampled + 80 * 120 * 0.40 / 1e6
    assert numbers["whole_job_cost_usd_likely"] == pytest.approx(expected, rel=1e-3), "the baseline included"
    assert numbers["whole_job_cost_usd_low"] < expected < numbers["whole_job_cost_usd_high"]
    assert " The whole job costs 0.0070 USD, 0.0" in finding.observed
    assert finding.observed.endswith("(default@2026-01-01).")


def test_a_class_without_a_price_is_unknown_and_named() -> None:
    judged = [group(number, 0.0, 1.0, judged=True) for number in range(4)]
    finding = cost_finding(baseline(*judged))
    assert "and what judgePrompt, judgeSample cost is unknown." in finding.observed
    priced = PRICES.model_copy(update={"judge_prompt": "1000", "judge_sample": "0"})
    known = cost_finding(baseline(*judged, prices=Prices.model_validate(priced.model_dump())))
    assert "unknown" not in known.observed
    likely = "whole_job_cost_usd_likely"
    more = dict(known.numbers)[likely] - dict(finding.numbers)[likely]
    assert more == pytest.approx(11 * (8 + 4) * 300 * 1000 / 1e6), "of episodes, and of whole groups"


def test_every_group_is_trained_on_by_other_methods() -> None:
    finding = cost_finding(baseline(*TEACHING, *ALIKE, trains_alike=True))
    assert dict(finding.numbers)["training_train_tokens"] == 160 * 120


def test_without_prices_there_is_no_cost() -> None:
    finding = cost_finding(baseline(*TEACHING, prices=None))
    assert "USD" not in finding.observed
    assert not [name for name in dict(finding.numbers) if "usd" in name]


def test_the_cost_is_of_the_whole_job_where_it_is_known() -> None:
    plan = Plan(
        steps=10,
        batch_size=8,
        group_size=2,
        every_steps=10,
        at_start=True,
        validation_rows=100,
        preflight_episodes=16,
    )
    alone = dict(cost_finding(baseline(*TEACHING, *ALIKE)).numbers)
    whole = dict(cost_finding(baseline(*TEACHING, *ALIKE, plan=plan)).numbers)
    more = whole["whole_job_cost_usd_likely"] - alone["whole_job_cost_usd_likely"]
    assert more == pytest.approx(200 * (70 * 0.13 + 30 * 0.026 + 20 * 0.40) / 1e6, rel=1e-3)


def test_a_group_is_what_the_ledger_would_bill() -> None:
    lost = [*group(12, 0.0, 1.0, 1.0)]
    broken = lost[2].record.model_copy(update={"outcome": Outcome.INFRA_ERROR, "reward": None})
    unread = lost[1].record.model_copy(
        update={"turns": [turn.model_copy(update={"delivered": False}) for turn in lost[1].record.turns]}
    )
    members = [lost[0].record, unread, broken]
    retried = [broken.model_copy(update={"attempt": 3, "episode_id": "preflight-0012-2-3"})]
    whole = lost[0].group.model_copy(update={"episodes": members, "discarded": retried})
    odd = [replace(one, record=record, group=whole) for one, record in zip(lost, members, strict=True)]
    judged = (group(number, 0.0, 1.0, judged=True) for number in range(8, 12))
    for each in (*TEACHING, *ALIKE, *judged, odd):
        billed: Counter[str] = Counter()
        for event in of_group(each[0].group):
            billed[event.usage_class.value] += event.quantity  # type: ignore[assignment]
        [played] = groups(baseline(each))
        used: Counter[str] = Counter()
        for key, much in played.usage.items():
            used[class_of(key)] += much  # type: ignore[assignment]
        assert {**used, "train": 0} == {**billed, "train": 0}


def test_a_group_record_without_its_episodes_is_counted_by_them() -> None:
    """An author's own tests make such records."""
    found = [
        replace(one, group=one.group.model_copy(update={"episodes": []}))
        for each in (*TEACHING, *ALIKE)
        for one in each
    ]
    finding = cost_finding(baseline(found, batch_size=8))
    assert dict(finding.numbers)["training_train_tokens"] == 80 * 120
