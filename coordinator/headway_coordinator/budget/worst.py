"""The most that episodes may be billed for: pure functions of limits, and of what an episode has used.

Amounts are by slot. A slot names the classes of the bill under one of which each of its tokens will stand.
Nobody knows whether a prompt will be cached, or its group given up, before that has happened. So a slot costs
what its dearest class does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headway_api.prices import of
from headway_api.records import EpisodeRecord, GroupRecord, Judgement, Outcome, Purpose, SampledBy, UsageClass
from headway_coordinator.ledger.events import classes_of

Slot = tuple[str, ...]
"""Keys of the bill (`prices.of`)."""
Amounts = Mapping[Slot, int]
"""Tokens, or seconds rounded up."""
CONTEXTS: Final = 32
"""Whole contexts that an episode of an agent with a loop of its own may use under a budget, over all its
turns: the spec does not limit them."""
TEMPLATE_TOKENS: Final = 256
"""Most tokens that a chat template is taken to add to a message, and to a conversation."""
TRAIN: Final = UsageClass.TRAIN.value
SANDBOX: Final = UsageClass.SANDBOX_SECONDS.value


@dataclass(frozen=True)
class Limits:
    """What bounds an attempt at an episode of a job."""

    context_length: int
    """Most tokens of a turn, prompt and answer together."""
    turns: int | None
    """Most turns; None of an agent with a loop of its own."""
    sandbox_seconds: int
    """Longest life of a sandbox in use."""
    retries: int
    """Attempts after the first."""
    judging_seconds: int = 0
    """Longest that sandboxes may be in use in which the environment rewards a group as a whole."""

    @property
    def tokens(self) -> int:
        """Most tokens of all turns of an attempt, prompts and answers together."""
        return self.context_length * (CONTEXTS if self.turns is None else self.turns)

    def sampled(self, max_tokens: int, episode_tokens: int | None) -> int:
        """Most tokens that an attempt samples.

        Args:
            max_tokens: of one turn.
            episode_tokens: of one episode, where that is limited.
        """
        most = self.tokens if self.turns is None else min(self.tokens, self.turns * max_tokens)
        return most if episode_tokens is None else min(most, episode_tokens)


NO_LIMITS: Final = Limits(0, 0, 0, 0)
"""Of a job without a budget, where nobody asks."""


@dataclass(frozen=True)
class Bill:
    """Under which classes the episodes of a group are billed."""

    purpose: Purpose
    sampled_by: SampledBy = "servers"
    model: str | None = None
    """Whose prices hold; None: the job's own."""

    @property
    def classes(self) -> tuple[str, str, str]:
        """Of prompts, of prompts found in a cache, and of what is sampled."""
        prompt, cached, sampled = classes_of(self.purpose)
        return of(prompt, self.model), of(cached, self.model), of(sampled, self.model)

    @property
    def discarded(self) -> str:
        """Of what was sampled for nothing."""
        return of(UsageClass.DISCARDED, self.model)


def of_attempts(limits: Limits, bill: Bill, sampled: int, attempts: int) -> Counter[Slot]:
    """What so many attempts at one episode may be billed for, its share of training included.

    What judges and endpoints are asked is not in it: that is reserved before each question.

    Args:
        sampled: most tokens that an attempt samples.
        attempts: the one that counts, and those before it that may be lost.
    """
    found: Counter[Slot] = Counter()
    if attempts < 1:
        return found
    found[(SANDBOX,)] = limits.sandbox_seconds
    if bill.sampled_by != "servers":
        return found
    prompt, cached, sample = bill.classes
    found[prompt, cached, bill.discarded] = limits.tokens
    found[sample, bill.discarded] = sampled
    found[(bill.discarded,)] = (attempts - 1) * limits.tokens
    if bill.purpose is Purpose.TRAIN:
        found[(TRAIN,)] = limits.tokens
    return +found


def of_judging(limits: Limits, bill: Bill) -> Counter[Slot]:
    """What it may take to reward a group as a whole, beside what judges are asked."""
    found: Counter[Slot] = Counter()
    if bill.purpose in (Purpose.TRAIN, Purpose.PREFLIGHT):
        found[(SANDBOX,)] = limits.judging_seconds
    return +found


def of_ended(record: EpisodeRecord, bill: Bill) -> Counter[Slot]:
    """What an attempt that has ended may be billed for, whatever becomes of its group; without its questions
    to judges, and without what an endpoint sampled."""
    found: Counter[Slot] = Counter()
    lost = record.outcome is Outcome.INFRA_ERROR
    if not lost:
        found[(SANDBOX,)] = math.ceil(record.sandbox_seconds)
    if bill.sampled_by != "servers":
        return +found
    prompt, cached, sample = bill.classes
    for turn in record.turns:
        computed = turn.prompt_tokens - turn.cached_tokens
        if lost or not turn.delivered:
            found[(bill.discarded,)] += computed + turn.sampled_tokens
        else:
            found[prompt, bill.discarded] += computed
            found[(cached,)] += turn.cached_tokens
            found[sample, bill.discarded] += turn.sampled_tokens
    if not lost and bill.purpose is Purpose.TRAIN:
        found[(TRAIN,)] += _rows([record])
    return +found


def to_train(group: GroupRecord) -> Counter[Slot]:
    """What a finished group may yet be billed for: the tokens of the step that takes it."""
    found: Counter[Slot] = Counter()
    found[(TRAIN,)] = _rows(group.scored)
    return +found


def of_judgements(found: Iterable[Judgement]) -> Counter[Slot]:
    """What questions to judges have cost."""
    told: Counter[Slot] = Counter()
    for each in found:
        told[(of(UsageClass.JUDGE_PROMPT, each.model),)] += each.prompt_tokens
        told[(of(UsageClass.JUDGE_SAMPLE, each.model),)] += each.sampled_tokens
    return +told


def total(parts: Iterable[Amounts]) -> Counter[Slot]:
    """The sum of amounts."""
    found: Counter[Slot] = Counter()
    for part in parts:
        found.update(part)
    return found


def _rows(episodes: Sequence[EpisodeRecord]) -> int:
    """Tokens that a step trains on at most: every row, context and action."""
    return sum(len(row.tokens) for episode in episodes for row in episode.rows)
