"""A whole job's usage and cost, low, likely and high: what is spent, and what the rest will use.

These assumptions replace what cannot be measured:

* the job completes, and no remedy changes it;
* training may make episodes longer or shorter. So for what is left, low is divided by `DRIFT` and high
  multiplied by it. The factor falls as training goes on;
* the share of groups with a gradient changes during training. So the range of training tokens is widened by
  the factor `GRADIENT_FACTOR` in the same way. If the tokens of groups are known, high is their number for
  the case that every group has a gradient;
* held-out episodes are like training episodes, until some were measured. They share their prompt with fewer
  other episodes, so servers find less of the prompt in their cache;
* prices are those of the day on which the estimate is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from typing import Final, Literal, NamedTuple

from headway_analysis.estimate.amounts import Range, Usage, added, exactly, multiplied, ordered
from headway_analysis.estimate.measured import HELD_OUT, NOTHING_MEASURED, Mean, Measured, held_out
from headway_analysis.estimate.plan import Left, Plan, everything
from headway_api.prices import ACCELERATORS, EXACT, class_of, whose
from headway_api.prices import of as of_model
from headway_api.records import UsageClass

Basis = Literal["Data", "Preflight", "Running"]
Price = Callable[[str], Decimal | None]
"""Key of the bill (`prices.of`) -> US dollars of one token or second; None if it has no price."""
DRIFT: Final = 1.5
GRADIENT_FACTOR: Final = 2.0
PACE: Final = 2.0
"""The factor by which ranges of seconds are widened: no learner ran while these were measured."""
UNSEEN: Final = 3.0
"""An event that never happened in n tries has a chance of at most 3 / n, with 5 % error (Hanley 1983)."""
BRIEFEST: Final = 1.0
"""Seconds of usage. The number of accelerators that were held cannot be computed from a shorter time."""
TRAIN: Final = UsageClass.TRAIN.value
DISCARDED: Final = UsageClass.DISCARDED.value
SAMPLED: Final = (*HELD_OUT.keys(), *HELD_OUT.values())
"""Classes of tokens that the job's own servers compute and sample."""
AT_ENDPOINTS: Final = (UsageClass.ENDPOINT_PROMPT.value, UsageClass.ENDPOINT_SAMPLE.value)
OF_JUDGES: Final = (UsageClass.JUDGE_PROMPT.value, UsageClass.JUDGE_SAMPLE.value)


class Cost(NamedTuple):
    """US dollars."""

    low: Decimal
    likely: Decimal
    high: Decimal


@dataclass(frozen=True)
class Spent:
    """What the job has used so far, as the ledger records it."""

    usage: Mapping[str, float] = field(default_factory=dict)
    """Tokens or seconds by key of the bill."""
    cost: Decimal = Decimal(0)
    """US dollars: each day's usage at that day's prices."""
    seconds: float = 0.0
    """Seconds since the first episode began."""


@dataclass(frozen=True)
class Estimate:
    """What a whole job will use and cost."""

    basis: Basis
    usage: Usage = field(default_factory=dict)
    """What is spent plus what is left, by key of the bill."""
    cost: Cost | None = None
    """The cost of all usage that has a price. None if there is no estimate; `why` says the reason."""
    unpriced: tuple[str, ...] = ()
    """Used classes whose price or quantity is unknown. The cost leaves them out."""
    seconds: Range | None = None
    """Seconds from the first episode to the end; None if the pace is unknown."""
    episodes: int = 0
    """Number of episodes from which the estimate was measured."""
    why: str = ""
    """Why the estimate is missing or incomplete."""


def before(plan: Plan, episode: Usage, price: Price, why: str = "") -> Estimate:
    """The estimate from data and limits alone.

    Args:
        plan: the job's plan.
        episode: what a training episode may use, from `limits.of_episode`.
        price: today's prices.
        why: the reason why nothing more is known, if the estimate should give it.
    """
    if plan.why:
        return Estimate("Data", why=plan.why)
    left = everything(plan)
    others = exactly(left.validation + left.preflight).plus(left.test)
    used = added([multiplied(episode, exactly(float(plan.episodes))), multiplied(_held_out(episode), others)])
    found = priced(Estimate("Data", used, why=why), Decimal(0), used, price)
    judges = [name for name in OF_JUDGES if plan.judged and name not in found.unpriced]
    return replace(found, unpriced=(*found.unpriced, *judges))


def by_episodes(
    basis: Basis,
    plan: Plan,
    left: Left,
    training: Measured,
    price: Price,
    *,
    spent: Spent | None = None,
    evaluated: Measured = NOTHING_MEASURED,
    step: Mean | None = None,
    ahead: Range | None = None,
) -> Estimate:
    """The estimate from episodes that were played.

    Args:
        basis: whether these are the preflight's episodes or a running job's.
        plan: the job's plan.
        left: the part of the plan that is still to be done.
        training: what episodes of training or of the preflight used.
        price: today's prices.
        spent: what the ledger has recorded; None if there is no ledger.
        evaluated: what held-out episodes used, in the classes of training; `NOTHING_MEASURED` if none.
        step: training tokens of a step; None if no step was taken.
        ahead: seconds until the end; None if they are unknown.
    """
    if plan.why:
        return Estimate(basis, why=plan.why)
    if not training.is_sufficient:
        return Estimate(basis, episodes=training.episodes, why=too_few(training))
    done = spent or Spent()
    share = min(1.0, left.steps / plan.steps)
    drift = 1 + (DRIFT - 1) * share
    rest = added(
        [
            sampled(training, left.groups, exactly(left.groups * plan.group_size), drift),
            {TRAIN: _trained(plan, left, training, step, drift, 1 + (GRADIENT_FACTOR - 1) * share)},
            _evaluated(plan, left, training, evaluated, drift),
        ]
    )
    if ahead is not None:
        rest |= accelerators_to_come(plan.accelerators, done.usage, done.seconds, ahead)
    used = added([{name: exactly(much) for name, much in done.usage.items() if much}, rest])
    seconds = None if ahead is None else ahead.plus(exactly(done.seconds))
    found = Estimate(basis, used, seconds=seconds, episodes=training.episodes)
    return priced(found, done.cost, rest, price)


def seconds_by_episodes(plan: Plan, left: Left, each: float) -> Range:
    """Seconds until the end. `each`: seconds that an episode kept one server busy.

    The learner's time is not known.
    """
    played = exactly(left.groups * plan.group_size + left.validation).plus(left.test)
    return played.times(exactly(each / max(1, plan.replicas))).spread(PACE)


def seconds_by_steps(plan: Plan, left: Left, each: float) -> Range:
    """Seconds until the end. `each`: seconds of a step, from the latest steps."""
    drift = 1 + (PACE - 1) * min(1.0, left.steps / max(1, plan.steps))
    return exactly(left.steps * each).spread(drift)


def too_few(training: Measured) -> str:
    """Why the episodes are too few for an estimate."""
    if not training.groups:
        return "no episode was measured"
    if not training.episodes or not training.means:
        return f"all episodes of {training.groups} groups were lost"
    return f"{training.groups} group of episodes does not show how much they differ"


def accelerators_to_come(
    asked: int, usage: Mapping[str, float], seconds: float, ahead: Range
) -> dict[str, Range]:
    """Accelerator seconds that are still to come. The number of accelerators is the larger of the spec's
    number and the mean number held so far.

    Args:
        asked: accelerators that the spec names.
        usage: usage in the ledger, by key of the bill.
        seconds: the time that this usage covers.
        ahead: seconds for which accelerators will still be held.
    """
    known = {key: much for key, much in usage.items() if class_of(key) == ACCELERATORS and much > 0}
    total = sum(known.values())
    count = max(float(asked), total / seconds if seconds >= BRIEFEST else 0.0)
    shares = {key: much / total for key, much in known.items()} or {ACCELERATORS: 1.0}
    return {key: ahead.times(exactly(count * share)) for key, share in shares.items() if count}


def sampled(of: Measured, groups: float, episodes: Range, drift: float) -> dict[str, Range]:
    """What future episodes will use, without training tokens, by the keys of `of`.

    Args:
        of: what similar episodes used.
        groups: the number of future groups.
        episodes: the number of future episodes.
        drift: the factor by which the measured range is widened.
    """
    found = {name: mean.of_future(groups) for name, mean in of.means.items() if name != TRAIN}
    found |= _unseen(found, UNSEEN / max(1, of.episodes))
    return multiplied({name: amount.spread(drift) for name, amount in found.items()}, episodes)


def _unseen(episode: Usage, chance: float) -> dict[str, Range]:
    """The classes that bill lost attempts, with high values as if the share `chance` of attempts were lost.

    Lost tokens of the job's own servers count as discarded, by model. An endpoint bills them like any others.
    """
    tokens: dict[str | None, float] = {}
    found: dict[str, Range] = {}
    for key, amount in episode.items():
        if class_of(key) in SAMPLED:
            tokens[whose(key)] = tokens.get(whose(key), 0.0) + amount.likely
        if class_of(key) in AT_ENDPOINTS:
            worst = amount.likely * (1 + chance)
            found[key] = ordered(amount.low, amount.likely, max(amount.high, worst))
    for model, much in (tokens or {None: 0.0}).items():
        key = of_model(DISCARDED, model)
        lost = episode.get(key, exactly(0.0))
        found[key] = ordered(lost.low, lost.likely, max(lost.high, chance * much))
    return found


def _trained(
    plan: Plan, left: Left, training: Measured, step: Mean | None, drift: float, teaching: float
) -> Range:
    """Training tokens of the steps to come."""
    episodes = left.steps * plan.batch_size * plan.group_size
    if step is not None and step.count >= 1:
        one, count = step.of_future(left.steps), left.steps
    else:
        mean = training.means.get(TRAIN, Mean(0.0, 0.0, float(training.groups)))
        one, count = mean.of_future(left.steps * plan.batch_size), episodes
    found = one.spread(drift * teaching).times(exactly(count))
    maximum = training.row_tokens * episodes * drift
    return ordered(found.low, found.likely, maximum if maximum > found.likely else found.high)


def _evaluated(
    plan: Plan, left: Left, training: Measured, evaluated: Measured, drift: float
) -> dict[str, Range]:
    """What the remaining held-out episodes and those of the preflight will use."""
    source = evaluated if evaluated.is_sufficient else _apart(training, plan.tries)
    episodes = exactly(left.validation).plus(left.test)
    own = sampled(source, episodes.likely / max(1, plan.tries), episodes, drift)
    preflight = sampled(training, left.preflight / plan.group_size, exactly(left.preflight), drift)
    return added([_held_out(own), _held_out(preflight)])


def _apart(training: Measured, tries: int) -> Measured:
    """The usage of training episodes, as if a group had `tries` episodes.

    Only a group's first episode computes the prompt. So in smaller groups more prompt tokens are computed.
    """
    names = UsageClass.PREFILL.value, UsageClass.CACHED_PREFILL.value
    size = max(2, training.group_size)
    fewer = 1 - min(1.0, (1 - 1 / max(1, tries)) / (1 - 1 / size))
    moved = training.shared * fewer
    means = dict(training.means)
    for name, more in zip(names, (moved, -moved), strict=True):
        mean = means.get(name, Mean(0.0, 0.0, float(training.groups)))
        means[name] = replace(mean, value=max(0.0, mean.value + more))
    return replace(training, means=means)


def _held_out(episode: Usage) -> dict[str, Range]:
    """An episode's usage in the classes of held-out episodes, without training tokens."""
    return {held_out(name): amount for name, amount in episode.items() if name != TRAIN}


def priced(found: Estimate, spent: Decimal, rest: Usage, price: Price) -> Estimate:
    """The estimate with its cost, and with the classes that have no price.

    Args:
        found: the estimate, whose usage includes what is spent and what is left.
        spent: US dollars for what is spent.
        rest: usage that is still to come, by key of the bill.
        price: today's prices.
    """
    low, likely, high = spent, spent, spent
    with localcontext(EXACT):
        for name, amount in rest.items():
            each = price(name) or Decimal(0)
            low += each * round(amount.low)
            likely += each * round(amount.likely)
            high += each * round(amount.high)
    used = sorted(key for key, amount in found.usage.items() if amount.likely > 0)
    unpriced = tuple(dict.fromkeys(class_of(key) for key in used if price(key) is None))
    return replace(found, cost=Cost(low, likely, high), unpriced=unpriced)
