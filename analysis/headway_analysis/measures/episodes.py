"""Measures over finished groups: unbiased pass@k and pass^k, means, outcome counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import comb, fsum, sqrt
from typing import Final, NamedTuple

from headway_api.records import EpisodeRecord, GroupRecord


def pass_at_k(tries: int, successes: int, k: int) -> float:
    """Unbiased estimate that one of k tries succeeds, from `successes` of `tries` (arXiv 2107.03374)."""
    _check(tries, successes, k)
    return 1.0 - comb(tries - successes, k) / comb(tries, k)


def pass_power_k(tries: int, successes: int, k: int) -> float:
    """Unbiased estimate that all of k tries succeed (pass^k, arXiv 2406.12045)."""
    _check(tries, successes, k)
    return comb(successes, k) / comb(tries, k)


def _check(tries: int, successes: int, k: int) -> None:
    if not 0 <= successes <= tries or not 1 <= k <= tries:
        raise ValueError(f"no estimate for k={k} from {successes} successes in {tries} tries")


class Spread(NamedTuple):
    """Mean, population standard deviation, smallest and largest of some values."""

    mean: float
    std: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    """Spread of some values; all zero if there are none."""
    if not values:
        return Spread(0.0, 0.0, 0.0, 0.0)
    mean = fsum(values) / len(values)
    std = sqrt(fsum((value - mean) ** 2 for value in values) / len(values))
    return Spread(min(max(mean, min(values)), max(values)), std, min(values), max(values))


def gap(episode: EpisodeRecord) -> float:
    """Distance between reward and external score; 0 if one of them is missing."""
    reward, score = episode.reward, episode.score
    return 0.0 if reward is None or score is None else abs(reward - score)


def scored(groups: Sequence[GroupRecord]) -> list[EpisodeRecord]:
    """Every episode with a reward."""
    return [episode for group in groups for episode in group.scored]


def rewards(episodes: Sequence[EpisodeRecord]) -> list[float]:
    """The rewards of those episodes that have one."""
    return [episode.reward for episode in episodes if episode.reward is not None]


def scores(episodes: Sequence[EpisodeRecord]) -> list[float]:
    """The external scores of those episodes that have one."""
    return [episode.score for episode in episodes if episode.score is not None]


Judge = Callable[[EpisodeRecord, float], bool]
"""Says whether an episode succeeds at a threshold."""


def success(episode: EpisodeRecord, threshold: float) -> bool:
    """Whether the external score reaches the threshold."""
    return episode.score is not None and episode.score >= threshold


def reward_success(episode: EpisodeRecord, threshold: float) -> bool:
    """Whether the reward reaches the threshold: success as SageMaker MTRL judges it."""
    return episode.reward is not None and episode.reward >= threshold


class Evaluation(NamedTuple):
    """One validation, in a few numbers."""

    step: int
    reward: float
    external_score: float
    success: float
    """Share of scored episodes that succeed."""
    episodes: int
    failed: int
    """Episodes that stayed InfraError. No mean counts them."""
    tasks: dict[str, dict[str, float]] | None = None
    """Task -> its reward, external_score, success and rows; None if no column names tasks."""


LOST_MORE: Final = 0.05
"""Two samples may be ranked by their means if their shares of lost episodes differ by at most this. Lost
episodes are often the hard ones. A gate's `maxLost` has the same default."""


def comparable(lost: Sequence[float]) -> list[bool]:
    """Whether each sample lost few enough episodes for its mean to be ranked. Such a sample lost at most
    `LOST_MORE` more than the sample that lost the fewest.

    Args:
        lost: share of each sample's episodes that stayed InfraError.
    """
    least = min(lost, default=0.0)
    return [share <= least + LOST_MORE + 1e-9 for share in lost]


def ranked(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Evaluations from best to worst: by external score, then by reward, then by the earlier step.

    An evaluation that is not `comparable` comes after all that are, whatever its score. If 88 episodes of 100
    are lost, the other 12 may score well only because they are the easy ones.
    """
    found = list(evaluations)
    fit = comparable([e.failed / max(1, e.episodes + e.failed) for e in found])
    order = sorted(
        zip(fit, found, strict=True), key=lambda e: (not e[0], -e[1].external_score, -e[1].reward, e[1].step)
    )
    return [evaluation for _, evaluation in order]


def summarize(step: int, groups: Sequence[GroupRecord], threshold: float) -> Evaluation:
    """The results of a validation. An episode succeeds if its external score reaches `threshold`."""
    episodes = scored(groups)
    return Evaluation(
        step=step,
        reward=spread(rewards(episodes)).mean,
        external_score=spread(scores(episodes)).mean,
        success=spread([float(success(episode, threshold)) for episode in episodes]).mean,
        episodes=len(episodes),
        failed=sum(len(group.episodes) for group in groups) - len(episodes),
    )


def pass_k(
    groups: Sequence[GroupRecord], ks: Sequence[int], threshold: float, judge: Judge = success
) -> dict[str, float]:
    """`pass_at_{k}` and `pass_power_{k}`, averaged over the prompts with at least k scored tries."""
    counts = [(len(g.scored), sum(judge(e, threshold) for e in g.scored)) for g in groups]
    found: dict[str, float] = {}
    for k in ks:
        enough = [(tries, good) for tries, good in counts if tries >= k]
        if enough:
            found[f"pass_at_{k}"] = fsum(pass_at_k(n, c, k) for n, c in enough) / len(enough)
            found[f"pass_power_{k}"] = fsum(pass_power_k(n, c, k) for n, c in enough) / len(enough)
    return found


def pass_counts(groups: Sequence[GroupRecord], ks: Sequence[int]) -> dict[str, float]:
    """The counts behind `pass_k`: `pass_prompts_{k}`, prompts with k scored tries or more, and
    `pass_tries_{k}`, the scored tries of those prompts."""
    found: dict[str, float] = {}
    for k in ks:
        enough = [len(group.scored) for group in groups if len(group.scored) >= k]
        found |= {f"pass_prompts_{k}": float(len(enough)), f"pass_tries_{k}": float(sum(enough))}
    return found
