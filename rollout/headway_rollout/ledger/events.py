"""What was used, as events: pure functions of a finished group and of a step report.

An event's id is a function of what it counts, so a replay yields the same ids and counts nothing twice.

* training episodes: `prefill`, `cachedPrefill` and `sample` a turn, `sandboxSeconds` an episode;
* validation episodes: the evaluation classes;
* episodes that were retried, that stayed InfraError, or whose group was abandoned: every token they used is
  `discarded`, and nothing else is counted of them;
* a step: `train`, the tokens of each group that went through forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from headway_api.records import (
    EpisodeRecord,
    GroupRecord,
    Outcome,
    Purpose,
    StepReport,
    UsageClass,
    UsageEvent,
)

MIN_SCORED = 2
"""A training group with fewer scored episodes has nothing to compare: it is abandoned."""

_CLASSES = {
    Purpose.TRAIN: (UsageClass.PREFILL, UsageClass.CACHED_PREFILL, UsageClass.SAMPLE),
    Purpose.VALIDATION: (
        UsageClass.EVALUATION_PREFILL,
        UsageClass.EVALUATION_CACHED_PREFILL,
        UsageClass.EVALUATION_SAMPLE,
    ),
}


def abandoned(group: GroupRecord) -> bool:
    """Whether a training group has too few scored episodes to train on."""
    return group.purpose is Purpose.TRAIN and len(group.scored) < MIN_SCORED


def of_group(group: GroupRecord) -> list[UsageEvent]:
    """Every event of a finished group, its retried attempts included."""
    events: list[UsageEvent] = []
    for episode in group.episodes:
        counted = episode.outcome is not Outcome.INFRA_ERROR and not abandoned(group)
        events += _billed(episode, group.purpose) if counted else _discarded(episode)
    for episode in group.discarded:
        events += _discarded(episode)
    return events


def is_training_episode(event: UsageEvent) -> bool:
    """Whether this is the one event by which a scored training episode is counted."""
    return event.usage_class is UsageClass.SANDBOX_SECONDS and event.id.startswith("t")


def of_step(report: StepReport, at: float) -> list[UsageEvent]:
    """Tokens that one optimizer step trained on, a group at a time. `at` is when it was acknowledged."""
    return [
        UsageEvent(
            id=f"{group}/step-{report.step}/train", usage_class=UsageClass.TRAIN, quantity=tokens, at=at
        )
        for group, tokens in sorted(report.train_tokens.items())
        if tokens
    ]


def _billed(episode: EpisodeRecord, purpose: Purpose) -> Iterator[UsageEvent]:
    prefill, cached, sample = _CLASSES[purpose]
    for turn in episode.turns:
        for usage_class, quantity in (
            (prefill, turn.prompt_tokens - turn.cached_tokens),
            (cached, turn.cached_tokens),
            (sample, turn.sampled_tokens),
        ):
            yield from _event(episode, turn.index, usage_class, quantity)
    yield from _event(episode, "episode", UsageClass.SANDBOX_SECONDS, episode.sandbox_seconds)


def _discarded(episode: EpisodeRecord) -> Iterator[UsageEvent]:
    for turn in episode.turns:
        used = turn.prompt_tokens - turn.cached_tokens + turn.sampled_tokens
        yield from _event(episode, turn.index, UsageClass.DISCARDED, used)


def _event(
    episode: EpisodeRecord, turn: int | str, usage_class: UsageClass, quantity: float
) -> Iterator[UsageEvent]:
    if quantity:
        yield UsageEvent(
            id=f"{episode.episode_id}/{turn}/{usage_class.value}",
            usage_class=usage_class,
            quantity=quantity,
            at=episode.finished_at,
        )
