"""Measures how fast episodes run, and estimates how long the job will take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headway_analysis.estimate.whole import Estimate
from headway_analysis.preflight.choose import replay, varied
from headway_analysis.preflight.conversation import excerpt, written
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript, Script, ToolResult
from headway_analysis.preflight.expected import estimate, plan_of
from headway_analysis.preflight.shares import Share, enough_without, quantile, share
from headway_analysis.preflight.sources import EXACT, GUIDE
from headway_analysis.signals.judges.behaviour import MAX_FAILED
from headway_api.prices import shown
from headway_api.records import UsageClass

ID: Final = "throughput"
STARTS: Final = 3
SOME: Final = 8
ENOUGH: Final = enough_without(MAX_FAILED)
SLOW_SECONDS: Final = 10.0
"""The check warns if the 99th percentile of tool latency exceeds this."""


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Scripts without a tool call, which measure how long an episode waits for its sandbox."""
    return [
        replay(ID, f"start: {number}", one, calls=(), answer="")
        for number, one in enumerate(varied(baseline.scored, STARTS))
    ]


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on episodes an hour, seconds of tools and sandboxes, and lost episodes."""
    finished, facts = baseline.scored, baseline.facts
    if len(finished) < SOME or baseline.seconds <= 0:
        observed = f"{len(finished)} episodes are too few to tell how fast they run."
        return Finding(ID, "Unknown", observed, needs=SOME)
    results = [result for one in baseline.sampled for result in one.results]
    seconds = [result.seconds for result in results]
    waits = [one.waited for one in played if one.error is None]
    slow = quantile(seconds, 0.99)
    observed, of_servers = _speed(baseline)
    numbers = (
        *of_servers,
        ("p50_tool_seconds", quantile(seconds, 0.5)),
        ("p99_tool_seconds", slow),
        ("p50_sandbox_wait_seconds", quantile(waits, 0.5)),
    )
    lost = share(sum(one.record.reward is None for one in baseline.sampled), len(baseline.sampled))
    if lost.low > MAX_FAILED:
        return _lost(baseline, lost, observed, numbers)
    if slow > SLOW_SECONDS:
        observed = f"{observed} One tool call in a hundred takes {slow:.1f} s or more."
        advice = "Let tools replay recorded answers, keyed by arguments."
        slowest = _slowest(results)
        return Finding(
            ID,
            "Warn",
            observed,
            slow,
            SLOW_SECONDS,
            advice=advice,
            field=ENTRY,
            examples=slowest,
            numbers=numbers,
        )
    if facts.endpoint is not None:
        return Finding(ID, "Unknown", observed, numbers=numbers)
    return Finding(ID, "Pass", observed, dict(numbers)["episodes_an_hour"], numbers=numbers)


def _speed(baseline: Baseline) -> tuple[str, tuple[tuple[str, float], ...]]:
    """A text and numbers on how fast the job's servers run episodes, and on what the whole job costs."""
    facts = baseline.facts
    if facts.endpoint is not None:
        return f"The endpoint of {facts.endpoint} does not show how fast the job's own servers are.", ()
    rate = len(baseline.scored) / baseline.seconds * 3600
    episodes, found = plan_of(facts).episodes, estimate(baseline)
    observed = (
        f"{rate:.0f} episodes an hour at {baseline.concurrency} at once: {episodes} training episodes take "
        f"{episodes / rate:.1f} hours on as many servers."
    )
    numbers = (
        ("episodes_an_hour", rate),
        ("training_episodes", float(episodes)),
        ("rollout_hours", episodes / rate),
        *_numbers(baseline, found),
    )
    return f"{observed}{_priced(baseline, found)}", numbers


ENTRY: Final = "spec.environment.entrypoint"
AMOUNTS: Final = {
    UsageClass.PREFILL.value: "training_prefill_tokens",
    UsageClass.SAMPLE.value: "training_sampled_tokens",
    UsageClass.TRAIN.value: "training_train_tokens",
}
"""Class of the bill -> name of the finding's number with its likely amount."""


def _numbers(baseline: Baseline, found: Estimate) -> Iterator[tuple[str, float]]:
    """Numbers of tokens that servers and learner will compute for training, and the whole job's cost."""
    for name, amount_name in AMOUNTS.items():
        if name in found.usage:
            yield amount_name, float(round(found.usage[name].likely))
    if found.cost is not None and baseline.facts.price is not None:
        for end, amount in found.cost._asdict().items():
            yield f"whole_job_cost_usd_{end}", float(amount)


def _priced(baseline: Baseline, found: Estimate) -> str:
    """A sentence with the whole job's cost; empty if there are no prices."""
    if baseline.facts.price is None:
        return ""
    if found.cost is None:
        return f" What the whole job costs is not known: {found.why}."
    low, likely, high = map(shown, found.cost)
    edition = baseline.facts.price_edition
    text = f" The whole job costs {likely} USD, {low} to {high} ({edition})"
    lacking = ", ".join(found.unpriced)
    return f"{text}, and what {lacking} cost is unknown." if lacking else f"{text}."


def _lost(baseline: Baseline, lost: Share, observed: str, numbers: tuple[tuple[str, float], ...]) -> Finding:
    bad = [one for one in baseline.sampled if one.record.reward is None]
    examples = tuple(
        Example(f"row {one.group.row}: lost", excerpt(one.record.error or ""), one.record.episode_id)
        for one in bad[:MAX_EXAMPLES]
    )
    observed = f"{lost} episodes are lost permanently. {observed}"
    elsewhere = baseline.facts.endpoint is not None
    blamed = "the environment or the endpoint" if elsewhere else "the environment"
    advice = f"Correct {blamed}: the errors of lost episodes name the call that fails."
    return Finding(
        ID,
        "Warn",
        observed,
        lost.value,
        MAX_FAILED,
        lost.low,
        lost.high,
        advice,
        None if elsewhere else ENTRY,
        examples=examples,
        numbers=numbers,
    )


def _slowest(results: Sequence[ToolResult]) -> tuple[Example, ...]:
    slow = sorted(results, key=lambda result: -result.seconds)[:MAX_EXAMPLES]
    return tuple(
        Example(f"{each.name}: {each.seconds:.1f} s", excerpt(written(dict(each.arguments)))) for each in slow
    )


CHECK: Final = Check(
    id=ID,
    meaning="Episodes run slowly, or are lost.",
    number="Scored baseline episodes an hour, and the hours that the job's training episodes will take. "
    "The result also has tool latency, waits for a sandbox, tokens of training, and the share of "
    "lost episodes. The cost of the whole job uses the bill's classes and the prices of the day, "
    "with the range that docs/estimate.md explains. A class without a price is listed as unknown.",
    threshold=f"Warns if surely more than {MAX_FAILED:.0%} of episodes are lost, or a tool's 99th "
    f"percentile is above {SLOW_SECONDS:g} s; never fails. Unknown below {SOME} episodes, or if "
    "an endpoint sampled the baseline.",
    reason="Time costs money, and how much is acceptable is the user's choice. A lost episode is retried, "
    "each time for nothing.",
    source=f"{GUIDE}: over 1 % permanent failures is a bug of the environment. {EXACT}.",
    advice="Let tools replay recorded answers, and correct the calls that lose episodes.",
    judge=judge,
    scripts=scripts,
)
