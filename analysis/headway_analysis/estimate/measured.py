"""What episodes used by class of the bill, and how much their groups differ.

Episodes of a group are alike, as they share a row. So the sample consists of groups. The mean is the usage of
one episode, and its error comes from the differences between groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite, sqrt
from typing import Final

from scipy.special import stdtrit

from headway_analysis.estimate.amounts import Range, ordered
from headway_api.prices import of
from headway_api.records import EpisodeRecord, GroupRecord, Judgement, Outcome, UsageClass

TAIL: Final = 0.025
"""Probability outside each end of an interval."""
FEWEST: Final = 2.0
"""With a smaller effective number of groups, their spread is unknown."""
OF_TRAINING: Final = (UsageClass.PREFILL, UsageClass.CACHED_PREFILL, UsageClass.SAMPLE)
OF_EVALUATION: Final = (
    UsageClass.EVALUATION_PREFILL,
    UsageClass.EVALUATION_CACHED_PREFILL,
    UsageClass.EVALUATION_SAMPLE,
)
HELD_OUT: Final[Mapping[str, str]] = {
    own.value: other.value for own, other in zip(OF_TRAINING, OF_EVALUATION, strict=True)
}
"""Class that bills a training episode -> class that bills the same usage of a held-out episode."""
IN_TRAINING: Final[Mapping[str, str]] = {other: own for own, other in HELD_OUT.items()}


def held_out(key: str) -> str:
    """The key of the bill for the same usage of a held-out episode."""
    return HELD_OUT.get(key, key)


@dataclass(frozen=True)
class Mean:
    """An episode's mean quantity in one class of usage."""

    value: float
    deviation: float
    """Standard deviation of the groups' means."""
    count: float
    """Number of groups; the effective number if their weights differ."""

    def of_future(self, groups: float) -> Range:
        """The mean of future groups, with its 95 % prediction interval (Student's).

        Args:
            groups: the number of future groups.
        """
        if self.count < FEWEST or groups <= 0:
            return ordered(self.value, self.value, self.value)
        quantile = float(stdtrit(self.count - 1, 1 - TAIL))
        half = quantile * self.deviation * sqrt(1 / self.count + 1 / groups)
        return ordered(self.value - half, self.value, self.value + half)


@dataclass(frozen=True)
class BilledGroup:
    """One group's usage, as the ledger bills it."""

    usage: Mapping[str, float]
    """Usage of all its episodes by key of the bill, lost attempts included, in the classes of training."""
    episodes: int
    """The number of episodes that the group must have."""
    kept: bool = True
    """Whether the group can be trained. If not, it was abandoned, and all its tokens are discarded."""
    shared: float = 0.0
    """Tokens of first prompts that were cached because other episodes of the group had the same prompt."""
    row_tokens: float = 0.0
    """Tokens of the group that are trained if it has a gradient."""


@dataclass(frozen=True)
class Measured:
    """What episodes of one kind used."""

    means: Mapping[str, Mean] = field(default_factory=dict)
    """Key of the bill -> mean of one episode."""
    groups: int = 0
    episodes: int = 0
    group_size: int = 1
    shared: float = 0.0
    """`BilledGroup.shared` of one episode."""
    row_tokens: float = 0.0
    """`BilledGroup.row_tokens` of one episode: the trained tokens if every group has a gradient."""

    @property
    def is_sufficient(self) -> bool:
        """Whether there are enough groups to give a mean and a spread."""
        return any(mean.count >= FEWEST for mean in self.means.values())


NOTHING_MEASURED: Final = Measured()


def measure(groups: Sequence[BilledGroup], weights: Sequence[float] | None = None) -> Measured:
    """The mean usage of an episode, from groups.

    The usage of an abandoned group is spread over the other groups, since another group takes its place.

    Args:
        groups: the groups, in the order in which they were played.
        weights: how much each group counts. None: all count the same.
    """
    found = [
        (each, weight)
        for each, weight in zip(groups, weights or [1.0] * len(groups), strict=True)
        if weight > 0 and all(isfinite(much) for much in (*each.usage.values(), each.shared, each.row_tokens))
    ]
    kept = fsum(weight for each, weight in found if each.kept)
    if kept <= 0:
        return Measured(groups=len(found))
    total = fsum(weight for _, weight in found)
    count = total**2 / fsum(weight**2 for _, weight in found)
    names = sorted({name for each, _ in found for name in each.usage})

    def mean(values: Sequence[float]) -> Mean:
        value = fsum(weight * one for (_, weight), one in zip(found, values, strict=True)) / kept
        middle = value * kept / total
        squares = fsum(weight * (one - middle) ** 2 for (_, weight), one in zip(found, values, strict=True))
        unbiased = count / (count - 1) if count > 1 else 1.0
        return Mean(value, sqrt(squares / total * unbiased) * total / kept, count)

    return Measured(
        means={
            name: mean([each.usage.get(name, 0.0) / max(1, each.episodes) for each, _ in found])
            for name in names
        },
        groups=len(found),
        episodes=sum(each.episodes for each, _ in found),
        group_size=max(each.episodes for each, _ in found),
        shared=mean([each.shared / max(1, each.episodes) for each, _ in found]).value,
        row_tokens=mean([each.row_tokens / max(1, each.episodes) for each, _ in found]).value,
    )


def of_group(
    episodes: Sequence[EpisodeRecord],
    discarded: Iterable[EpisodeRecord] = (),
    judgements: Sequence[Judgement] = (),
    *,
    row_tokens: float = 0.0,
    trains_alike: bool = False,
    least_scored: int = 2,
) -> BilledGroup:
    """A finished group's usage, billed as if it were a training group.

    Args:
        episodes: the final attempt at each index.
        discarded: earlier attempts.
        judgements: judgements that the reward of the whole group asked for.
        row_tokens: tokens of the scored episodes' training rows.
        trains_alike: whether groups of equal rewards are trained too.
        least_scored: a group with fewer scored episodes is abandoned.
    """
    scored = [each for each in episodes if each.outcome is not Outcome.INFRA_ERROR]
    kept = len(scored) >= least_scored
    used = dict.fromkeys((name.value for name in UsageClass), 0.0)
    for each in episodes:
        _add(used, _of_episode(each, lost=not kept or each.outcome is Outcome.INFRA_ERROR))
    retried = list(discarded)
    for each in retried:
        _add(used, _of_episode(each, lost=True))
    asked = [one for each in (*episodes, *retried) for one in each.judgements]
    asked += judgements
    for one in asked:
        tokens = {UsageClass.JUDGE_PROMPT: one.prompt_tokens, UsageClass.JUDGE_SAMPLE: one.sampled_tokens}
        _add(used, {of(name, one.model): float(much) for name, much in tokens.items()})
    teaches = trains_alike or len({each.reward for each in scored}) > 1
    used[UsageClass.TRAIN] += row_tokens if kept and teaches else 0.0
    first = [float(each.turns[0].cached_tokens) for each in scored if each.turns]
    return BilledGroup(
        usage={key: much for key, much in used.items() if much},
        episodes=len(episodes),
        kept=kept,
        shared=fsum(first) - min(first, default=0.0) * len(first),
        row_tokens=row_tokens if kept else 0.0,
    )


def of_record(group: GroupRecord) -> BilledGroup:
    """The usage of a recorded group, which has the tokens of its training rows."""
    rows = fsum(len(row.tokens) for each in group.scored for row in each.rows if any(row.mask))
    return of_group(group.episodes, group.discarded, group.judgements, row_tokens=rows)


def _of_episode(episode: EpisodeRecord, *, lost: bool) -> dict[str, float]:
    """What the ledger bills for an episode's turns and sandbox, in the classes of training."""
    found = dict.fromkeys((name.value for name in UsageClass), 0.0)
    for turn in episode.turns:
        computed = turn.prompt_tokens - turn.cached_tokens
        if lost or not turn.delivered:
            found[UsageClass.DISCARDED] += computed + turn.sampled_tokens
            continue
        found[UsageClass.PREFILL] += computed
        found[UsageClass.CACHED_PREFILL] += turn.cached_tokens
        found[UsageClass.SAMPLE] += turn.sampled_tokens
    found[UsageClass.SANDBOX_SECONDS] += 0.0 if lost else episode.sandbox_seconds
    return found


def _add(to: dict[str, float], more: Mapping[str, float]) -> None:
    for name, much in more.items():
        to[name] = to.get(name, 0.0) + much
