"""How fast episodes run, and how long the job will take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum
from typing import Final

from headway_analysis.preflight.choose import replay, varied
from headway_analysis.preflight.conversation import excerpt, written
from headway_analysis.preflight.definition import MOST_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, Played, Script, ToolResult
from headway_analysis.preflight.shares import Share, enough_without, quantile, share
from headway_analysis.preflight.sources import EXACT, GUIDE
from headway_analysis.signals.judges.conduct import MOST_FAILED
from headway_api.prices import cost, shown

ID: Final = "throughput"
STARTS: Final = 3
SOME: Final = 8
ENOUGH: Final = enough_without(MOST_FAILED)
SLOW_SECONDS: Final = 10.0
"""A tool's 99th percentile that is slow beside a model's turn."""


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Episodes without a call, for what a sandbox costs."""
    return [
        replay(ID, f"start: {number}", one, calls=(), answer="")
        for number, one in enumerate(varied(baseline.scored, STARTS))
    ]


def judge(baseline: Baseline, played: Sequence[Played]) -> Finding:
    """Episodes an hour, what tools and sandboxes take, and how many episodes are lost."""
    finished, facts = baseline.scored, baseline.facts
    if len(finished) < SOME or baseline.seconds <= 0:
        saw = f"{len(finished)} episodes are too few to tell how fast they run."
        return Finding(ID, "Unknown", saw, needs=SOME)
    rate = len(finished) / baseline.seconds * 3600
    episodes = facts.max_steps * facts.batch_size * facts.group_size
    results = [result for one in baseline.sampled for result in one.results]
    seconds = [result.seconds for result in results]
    waits = [one.waited for one in played if one.error is None]
    slow = quantile(seconds, 0.99)
    figures = (
        ("episodes_an_hour", rate),
        ("training_episodes", float(episodes)),
        ("rollout_hours", episodes / rate),
        ("p50_tool_seconds", quantile(seconds, 0.5)),
        ("p99_tool_seconds", slow),
        ("p50_sandbox_wait_seconds", quantile(waits, 0.5)),
        *_tokens(baseline, episodes),
        *_cost(baseline, episodes),
    )
    lost = share(sum(one.record.reward is None for one in baseline.sampled), len(baseline.sampled))
    saw = (
        f"{rate:.0f} episodes an hour at {baseline.concurrency} at once: {episodes} training episodes take "
        f"{episodes / rate:.1f} hours on as many servers."
    )
    saw = f"{saw}{_priced(baseline, episodes)}"
    if lost.low > MOST_FAILED:
        return _lost(baseline, lost, saw, figures)
    if slow > SLOW_SECONDS:
        saw = f"{saw} One tool call in a hundred takes {slow:.1f} s or more."
        advice = "Have tools replay recorded answers, keyed by arguments."
        slowest = _slowest(results)
        return Finding(
            ID, "Warn", saw, slow, SLOW_SECONDS, advice=advice, field=ENTRY, examples=slowest, figures=figures
        )
    return Finding(ID, "Pass", saw, rate, figures=figures)


ENTRY: Final = "spec.environment.entrypoint"


def _tokens(baseline: Baseline, episodes: int) -> Iterator[tuple[str, float]]:
    """Of the job's training episodes, what engines and learner will compute, as often as in the baseline."""
    used = usage(baseline, episodes)
    yield "training_prefill_tokens", used["prefill"]
    yield "training_sampled_tokens", used["sample"]
    yield "training_train_tokens", used["train"]


def usage(baseline: Baseline, episodes: int) -> dict[str, float]:
    """What so many training episodes use, by the classes of the bill, as much as those of the baseline did.

    Lost attempts, held-out episodes and endpoints are not in it.
    """
    scored = baseline.scored
    turns = [turn for one in scored for turn in one.record.turns]
    groups = {one.group.group_id: one.group for one in baseline.sampled}
    teaching = _teaching(baseline)
    asked = [each for one in baseline.sampled for each in one.record.judgements]
    asked += [each for group in groups.values() for each in group.judgements]
    found = {
        "prefill": fsum(turn.prompt_tokens - turn.cached_tokens for turn in turns),
        "cachedPrefill": fsum(turn.cached_tokens for turn in turns),
        "sample": fsum(turn.sampled_tokens for turn in turns),
        "train": fsum(one.row_tokens for one in scored if one.group.group_id in teaching),
        "judgePrompt": fsum(each.prompt_tokens for each in asked),
        "judgeSample": fsum(each.sampled_tokens for each in asked),
        "sandboxSeconds": fsum(one.record.sandbox_seconds for one in scored),
    }
    return {name: float(round(each * episodes / max(1, len(scored)))) for name, each in found.items()}


def _teaching(baseline: Baseline) -> set[str]:
    """Ids of the groups that would be trained on: by most methods, those whose rewards differ."""
    rewards: dict[str, list[float]] = {}
    for one in baseline.scored:
        rewards.setdefault(one.group.group_id, []).append(one.record.reward or 0.0)
    alike = baseline.facts.trains_alike
    return {name for name, found in rewards.items() if alike or max(found) > min(found)}


def _cost(baseline: Baseline, episodes: int) -> Iterator[tuple[str, float]]:
    """US dollars of what has a price."""
    prices = baseline.facts.prices
    if prices is not None:
        yield "training_cost_usd", float(cost(usage(baseline, episodes), prices))


def _priced(baseline: Baseline, episodes: int) -> str:
    """What that costs, as a sentence; nothing where no prices are given."""
    prices, used = baseline.facts.prices, usage(baseline, episodes)
    if prices is None:
        return ""
    known = prices.by_class()
    lacking = [name for name, quantity in used.items() if quantity and known.get(name) is None]
    amount, edition = shown(cost(used, prices)), baseline.facts.price_edition
    said = f" They cost {amount} USD ({edition})"
    return f"{said}, and what {', '.join(lacking)} cost is unknown." if lacking else f"{said}."


def _lost(baseline: Baseline, lost: Share, saw: str, figures: tuple[tuple[str, float], ...]) -> Finding:
    bad = [one for one in baseline.sampled if one.record.reward is None]
    examples = tuple(
        Example(f"row {one.group.row}: lost", excerpt(one.record.error or ""), one.record.episode_id)
        for one in bad[:MOST_EXAMPLES]
    )
    saw = f"{lost} episodes are lost for good. {saw}"
    advice = "Mend the environment: the errors of lost episodes name the call that fails."
    return Finding(
        ID,
        "Warn",
        saw,
        lost.value,
        MOST_FAILED,
        lost.low,
        lost.high,
        advice,
        ENTRY,
        examples=examples,
        figures=figures,
    )


def _slowest(results: Sequence[ToolResult]) -> tuple[Example, ...]:
    slow = sorted(results, key=lambda result: -result.seconds)[:MOST_EXAMPLES]
    return tuple(
        Example(f"{each.name}: {each.seconds:.1f} s", excerpt(written(dict(each.arguments)))) for each in slow
    )


CHECK: Final = Check(
    id=ID,
    meaning="Episodes run slowly, or are lost.",
    number="Scored baseline episodes an hour, and the hours that maxSteps x batchSize x groupSize of "
    "them take. "
    "Beside it tool latency, waits for a sandbox, tokens of training, and the share of episodes lost. What "
    "the training episodes cost is by the bill's classes and the prices of the day. Lost attempts and "
    "validation are not in it; a class without a price is named as unknown.",
    threshold=f"Warns where surely more than {MOST_FAILED:.0%} of episodes are lost, or a tool's "
    "99th percentile is "
    f"above {SLOW_SECONDS:g} s; never fails. Unknown below {SOME} episodes.",
    reason="Time costs money and is the user's to spend; what is lost is tried again, each time for nothing.",
    source=f"{GUIDE}: over 1 % permanent failures of rollouts is an environment's bug; {EXACT}.",
    advice="Have tools replay recorded answers, and mend what fails.",
    judge=judge,
    scripts=scripts,
)
