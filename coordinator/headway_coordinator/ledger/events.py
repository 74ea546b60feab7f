"""Usage as events: pure functions of a finished group and of a step report.

An event's id depends only on what it counts. So a replay yields the same ids, and counts nothing twice.

* training episodes: `prefill`, `cachedPrefill` and `sample` a turn, `sandboxSeconds` an episode;
* episodes of validations, evaluations and the preflight: the evaluation classes;
* episodes that an endpoint sampled: `endpointPrompt` and `endpointSample` a turn, `sandboxSeconds`;
* episodes that were scored again: only `sandboxSeconds`, because another run sampled their turns;
* episodes that were retried, that stayed InfraError, or whose group was abandoned: every token they used is
  `discarded`, and their sandboxes are not counted. The group's record has the reason. Tokens of an endpoint
  keep their class, because they cost the same there;
* turns that never reached their agent: also `discarded`, whatever happened to their episode;
* questions to judges: `judgePrompt` and `judgeSample`, even in lost episodes, like tokens of an endpoint;
* a step: `train`, the tokens of each group that went through forward and backward;
* accelerators: `acceleratorSeconds` by role and product, held since the previous segment of accelerators.

Events name the model if it is not the job's own: for judges, endpoints and candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

from headway_api.accelerators import Holder
from headway_api.records import (
    AbandonReason,
    EpisodeRecord,
    GroupRecord,
    Judgement,
    Outcome,
    Purpose,
    StepReport,
    Turn,
    UsageClass,
    UsageEvent,
)

DISCARDS: Final = ("Retried", "InfraError", "Undelivered", *get_args(AbandonReason))
"""Why tokens are discarded: their episode was run again or stayed lost, their turn never reached its agent,
or their group was abandoned."""

_EVALUATION = (
    UsageClass.EVALUATION_PREFILL,
    UsageClass.EVALUATION_CACHED_PREFILL,
    UsageClass.EVALUATION_SAMPLE,
)
_CLASSES = {
    Purpose.TRAIN: (UsageClass.PREFILL, UsageClass.CACHED_PREFILL, UsageClass.SAMPLE),
    Purpose.VALIDATION: _EVALUATION,
    Purpose.EVALUATION: _EVALUATION,
    Purpose.PREFLIGHT: _EVALUATION,
}


def classes_of(purpose: Purpose) -> tuple[UsageClass, UsageClass, UsageClass]:
    """The classes of prompts, of cached prompts, and of tokens sampled by the job's own servers."""
    return _CLASSES[purpose]


def of_group(group: GroupRecord) -> list[UsageEvent]:
    """Every event of a finished group, including its retried attempts."""
    events: list[UsageEvent] = []
    for episode, why in _billing_status(group):
        events += _turns(group, episode, why)
        events += judged(episode.episode_id, episode.judgements, episode.finished_at)
        if why is None:
            events += _event(episode, "episode", UsageClass.SANDBOX_SECONDS, episode.sandbox_seconds)
    if group.judgements:  # an abandoned group may have no episode, and then it asked no judge
        ended = max(episode.finished_at for episode in group.episodes)
        events += judged(f"{group.key}/group", group.judgements, ended)
    return events


def corrections(stored: Sequence[UsageEvent], meant: Sequence[UsageEvent]) -> list[UsageEvent]:
    """Events that turn the stored ones into the correct ones by addition. No event is ever removed."""
    withdrawn = [
        event.model_copy(update={"id": f"{event.id}/withdrawn", "quantity": -event.quantity})
        for event in stored
        if event not in meant
    ]
    return withdrawn + [event for event in meant if event not in stored]


def discarded_tokens(group: GroupRecord) -> Counter[str]:
    """A group's discarded tokens, by reason (`DISCARDS`). Only tokens of the job's own servers count."""
    found: Counter[str] = Counter()
    if group.sampled_by != "servers":
        return found
    for episode, why in _billing_status(group):
        turns = [turn for turn in episode.turns if why is not None or not turn.delivered]
        if tokens := sum(map(_used, turns)):
            found[why or "Undelivered"] += tokens
    return found


def _billing_status(group: GroupRecord) -> Iterator[tuple[EpisodeRecord, str | None]]:
    """Every episode, and why all its tokens are discarded. None if its delivered turns are billed."""
    whole = group.abandoned.reason if group.abandoned is not None else None
    for episode in group.episodes:
        yield episode, whole or ("InfraError" if episode.outcome is Outcome.INFRA_ERROR else None)
    for episode in group.discarded:
        yield episode, whole or "Retried"


def training_episodes(event: UsageEvent) -> int:
    """1 for the one event that counts a scored training episode, -1 for the one that withdraws it."""
    if event.usage_class is not UsageClass.SANDBOX_SECONDS or not event.id.startswith("t"):
        return 0
    return 1 if event.quantity > 0 else -1


def of_step(report: StepReport, at: float) -> list[UsageEvent]:
    """The tokens that one step trained on, by group. `at`: Unix time, which decides the price."""
    return [
        UsageEvent(
            id=f"{group}/step-{report.step}/train", usage_class=UsageClass.TRAIN, quantity=tokens, at=at
        )
        for group, tokens in sorted(report.train_tokens.items())
        if tokens
    ]


def of_accelerators(
    number: int,
    counted: Mapping[Holder, float],
    held_seconds: Mapping[Holder, float],
    at: float,
    *,
    last: bool,
) -> list[UsageEvent]:
    """Accelerator seconds that were held but are not counted yet. `number` is the segment's.

    If less was held than is counted, a pod ended a little earlier than the last count assumed. Seconds held
    later make up for the difference. If none follow (`last`), an event with a negative quantity does.
    """
    grown = {whose: seconds - counted.get(whose, 0) for whose, seconds in sorted(held_seconds.items())}
    return [
        UsageEvent(
            id=f"accelerators-{number:06d}/{whose.role}/{whose.product}",
            usage_class=UsageClass.ACCELERATOR_SECONDS,
            quantity=more,
            at=at,
            role=whose.role,
            product=whose.product,
        )
        for whose, more in grown.items()
        if more > 0 or (last and more < 0)
    ]


def _turns(group: GroupRecord, episode: EpisodeRecord, why: str | None) -> Iterator[UsageEvent]:
    """The usage of an episode's turns, by who sampled them."""
    if group.sampled_by == "endpoint":
        yield from _elsewhere(episode, group.model)
    elif group.sampled_by == "servers":
        for turn in episode.turns:
            discarded = why is not None or not turn.delivered
            yield from _discarded(episode, turn, group.model) if discarded else _billed(episode, turn, group)


def _elsewhere(episode: EpisodeRecord, model: str | None) -> Iterator[UsageEvent]:
    for turn in episode.turns:
        yield from _event(episode, turn.index, UsageClass.ENDPOINT_PROMPT, turn.prompt_tokens, model)
        yield from _event(episode, turn.index, UsageClass.ENDPOINT_SAMPLE, turn.sampled_tokens, model)


def judged(whose: str, judgements: Sequence[Judgement], at: float) -> Iterator[UsageEvent]:
    """The usage of questions to judges, of one episode, group or script. `at`: Unix time, for the price."""
    for number, asked in enumerate(judgements):
        used = {UsageClass.JUDGE_PROMPT: asked.prompt_tokens, UsageClass.JUDGE_SAMPLE: asked.sampled_tokens}
        for name, quantity in used.items():
            if quantity:
                event_id = f"{whose}/judge-{number}/{name.value}"
                yield UsageEvent(id=event_id, usage_class=name, quantity=quantity, at=at, model=asked.model)


def _billed(episode: EpisodeRecord, turn: Turn, group: GroupRecord) -> Iterator[UsageEvent]:
    prefill, cached, sample = _CLASSES[group.purpose]
    for usage_class, quantity in (
        (prefill, turn.prompt_tokens - turn.cached_tokens),
        (cached, turn.cached_tokens),
        (sample, turn.sampled_tokens),
    ):
        yield from _event(episode, turn.index, usage_class, quantity, group.model)


def _discarded(episode: EpisodeRecord, turn: Turn, model: str | None) -> Iterator[UsageEvent]:
    yield from _event(episode, turn.index, UsageClass.DISCARDED, _used(turn), model)


def _used(turn: Turn) -> int:
    """Tokens that the servers computed and sampled for a turn."""
    return turn.prompt_tokens - turn.cached_tokens + turn.sampled_tokens


def _event(
    episode: EpisodeRecord,
    turn: int | str,
    usage_class: UsageClass,
    quantity: float,
    model: str | None = None,
) -> Iterator[UsageEvent]:
    if quantity:
        yield UsageEvent(
            id=f"{episode.episode_id}/{turn}/{usage_class.value}",
            usage_class=usage_class,
            quantity=quantity,
            at=episode.finished_at,
            model=model,
        )
