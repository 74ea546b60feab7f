"""A whole job's usage and cost, low, likely and high: what is spent, and what the rest will use.

These assumptions replace what cannot be measured:

* the job completes, and no remedy changes it;
* training may make episodes longer or shorter. So the ends of what is left are `DRIFT` times further away
  than the measured episodes say by themselves. The factor falls as training goes on;
* by then, other groups have a gradient than at first. So the ends of the training tokens are `TEACHING` times
  further away, though never more than if every group had one;
* held-out episodes are like training's, until some were measured. They share their prompt with fewer others,
  so that servers find less of it in their cache;
* prices are those of the day on which the estimate is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from typing import Final, Literal, NamedTuple

from headway_analysis.estimate.amounts import Range, Usage, added, exactly, multiplied, ordered
from headway_analysis.estimate.measured import HELD_OUT, NOBODY, Mean, Measured, held_out
from headway_analysis.estimate.plan import Left, Plan, everything
from headway_api.prices import ACCELERATORS, EXACT, class_of, whose
from headway_api.prices import of as of_model
from headway_api.records import UsageClass

Basis = Literal["Data", "Preflight", "Running"]
Price = Callable[[str], Decimal | None]
"""Key of the bill (`prices.of`) -> US dollars of one token or second; None if it has no price."""
DRIFT: Final = 1.5
TEACHING: Final = 2.0
PACE: Final = 2.0
"""How much further away the ends of seconds are: no learner ran while they were measured."""
UNSEEN: Final = 3.0
"""What has not happened in n tries has a chance of 3 / n at most, with an error of 5 % (Hanley 1983)."""
BRIEFEST: Final = 1.0
"""Seconds. A shorter time does not show how many accelerators are held."""
TRAIN: Final = UsageClass.TRAIN.value
DISCARDED: Final = UsageClass.DISCARDED.value
SAMPLED: Final = (*HELD_OUT.keys(), *HELD_OUT.values())
"""Classes of what the job's own servers compute and sample."""
AT_ENDPOINTS: Final = (UsageClass.ENDPOINT_PROMPT.value, UsageClass.ENDPOINT_SAMPLE.value)
OF_JUDGES: Final = (UsageClass.JUDGE_PROMPT.value, UsageClass.JUDGE_SAMPLE.value)


class Cost(NamedTuple):
    """US dollars."""

    low: Decimal
    likely: Decimal
    high: Decimal


@dataclass(frozen=True)
class Spent:
    """What the ledger says so far."""

    usage: Mapping[str, float] = field(default_factory=dict)
    """By class."""
    cost: Decimal = Decimal(0)
    """Each day's usage at its own day's prices."""
    seconds: float = 0.0
    """Since the first episode began."""


@dataclass(frozen=True)
class Estimate:
    """What a whole job will use and cost."""

    basis: Basis
    usage: Usage = field(default_factory=dict)
    """By class of the bill: what is spent, and what is left."""
    cost: Cost | None = None
    """The cost of what has a price. None if there is no estimate; `why` says the reason."""
    unpriced: tuple[str, ...] = ()
    """Used classes whose price or quantity is unknown: they are not in the cost."""
    seconds: Range | None = None
    """From the first episode to the end; None before any was played."""
    episodes: int = 0
    """That were measured."""
    why: str = ""
    """Why the estimate is missing or incomplete."""


def before(plan: Plan, episode: Usage, price: Price, why: str = "") -> Estimate:
    """From data and limits alone.

    Args:
        plan: the job's.
        episode: what one of training may use, as `limits.of_episode` says.
        price: today's.
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
    evaluated: Measured = NOBODY,
    step: Mean | None = None,
    ahead: Range | None = None,
) -> Estimate:
    """From episodes that were played.

    Args:
        basis: which ones.
        plan: the job's.
        left: what of it is still to be played.
        training: what episodes of training used, or those of the preflight.
        price: today's.
        spent: what the ledger says; nothing if there is none.
        evaluated: what held-out episodes used, if some were measured, by the classes of training.
        step: training tokens of a step, if some were taken.
        ahead: seconds until the end.
    """
    if plan.why:
        return Estimate(basis, why=plan.why)
    if not training.tells:
        return Estimate(basis, episodes=training.episodes, why=too_few(training))
    done = spent or Spent()
    share = min(1.0, left.steps / plan.steps)
    drift = 1 + (DRIFT - 1) * share
    rest = added(
        [
            sampled(training, left.groups, exactly(left.groups * plan.group_size), drift),
            {TRAIN: _trained(plan, left, training, step, drift, 1 + (TEACHING - 1) * share)},
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
    """Seconds until the end, by how long an episode kept one server. The learner's time is not known."""
    played = exactly(left.groups * plan.group_size + left.validation).plus(left.test)
    return played.times(exactly(each / max(1, plan.replicas))).spread(PACE)


def seconds_by_steps(plan: Plan, left: Left, each: float) -> Range:
    """Seconds until the end, by the latest steps' durations."""
    drift = 1 + (PACE - 1) * min(1.0, left.steps / max(1, plan.steps))
    return exactly(left.steps * each).spread(drift)


def too_few(training: Measured) -> str:
    """Why no estimate follows from the episodes."""
    if not training.groups:
        return "no episode was measured"
    if not training.episodes or not training.means:
        return f"all episodes of {training.groups} groups were lost"
    return f"{training.groups} group of episodes does not show how much they differ"


def accelerators_to_come(
    asked: int, usage: Mapping[str, float], seconds: float, ahead: Range
) -> dict[str, Range]:
    """Accelerator seconds to come: of the number in the spec or the mean number held so far, whichever is
    larger.

    Args:
        asked: how many the spec names.
        usage: what the ledger says, by key of the bill.
        seconds: the time that this usage covers.
        ahead: seconds for which accelerators will still be held.
    """
    known = {key: much for key, much in usage.items() if class_of(key) == ACCELERATORS and much > 0}
    total = sum(known.values())
    count = max(float(asked), total / seconds if seconds >= BRIEFEST else 0.0)
    shares = {key: much / total for key, much in known.items()} or {ACCELERATORS: 1.0}
    return {key: ahead.times(exactly(count * share)) for key, share in shares.items() if count}


def sampled(of: Measured, groups: float, episodes: Range, drift: float) -> dict[str, Range]:
    """What future episodes use, without training tokens, by the keys of `of`.

    Args:
        of: what episodes like them used.
        groups: how many follow.
        episodes: number of episodes in the sum.
        drift: by how much the ends are further away than the measured episodes say.
    """
    found = {name: mean.of_future(groups) for name, mean in of.means.items() if name != TRAIN}
    found |= _unseen(found, UNSEEN / max(1, of.episodes))
    return multiplied({name: amount.spread(drift) for name, amount in found.items()}, episodes)


def _unseen(episode: Usage, chance: float) -> dict[str, Range]:
    """The classes under which lost attempts are billed, with `chance` as the largest share that may be lost.

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
    """What held-out episodes to come use, and those of the preflight."""
    source = evaluated if evaluated.tells else _apart(training, plan.tries)
    episodes = exactly(left.validation).plus(left.test)
    own = sampled(source, episodes.likely / max(1, plan.tries), episodes, drift)
    preflight = sampled(training, left.preflight / plan.group_size, exactly(left.preflight), drift)
    return added([_held_out(own), _held_out(preflight)])


def _apart(training: Measured, tries: int) -> Measured:
    """Training's episodes as if a group had `tries` of them: only the first one computes the prompt."""
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
    """The estimate with its cost, and what is not in that.

    Args:
        found: its usage is what is spent and what is left.
        spent: US dollars for what is spent.
        rest: what is left, by key of the bill.
        price: today's.
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
