"""The most that episodes may be billed for: pure functions of limits and of what an episode has used.

Amounts are by slot. A slot names several classes of the bill, and each of its tokens will be billed under one
of them. Only afterwards is it known whether a prompt was cached, or its group abandoned. So a slot costs as
much as its most expensive class.
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
"""Keys of the bill (`prices.of`). Each token of the slot is billed under one of them."""
Amounts = Mapping[Slot, int]
"""By slot: tokens, or seconds rounded up."""
CONTEXTS: Final = 32
"""Whole contexts that an episode of an agent with its own loop may use under a budget, over all its turns.
The spec has no limit for that."""
TEMPLATE_TOKENS: Final = 256
"""The most tokens that a chat template is assumed to add to a message, and to a conversation."""
TRAIN: Final = UsageClass.TRAIN.value
SANDBOX: Final = UsageClass.SANDBOX_SECONDS.value


@dataclass(frozen=True)
class Limits:
    """The bounds of an attempt at a job's episode."""

    context_length: int
    """Maximum tokens of a turn, prompt and answer together."""
    turns: int | None
    """Most turns; None for an agent with its own loop."""
    sandbox_seconds: int
    """Longest life of a sandbox in use."""
    retries: int
    """Attempts after the first."""
    judging_seconds: int = 0
    """The longest use of sandboxes in which the environment rewards a group as a whole."""

    @property
    def tokens(self) -> int:
        """Maximum tokens of all turns of an attempt, prompts and answers together."""
        return self.context_length * (CONTEXTS if self.turns is None else self.turns)

    def sampled(self, max_tokens: int, episode_tokens: int | None) -> int:
        """The most tokens that an attempt samples.

        Args:
            max_tokens: the most tokens that one turn samples.
            episode_tokens: the most tokens that one episode samples, if that is limited.
        """
        limit = self.tokens if self.turns is None else min(self.tokens, self.turns * max_tokens)
        return limit if episode_tokens is None else min(limit, episode_tokens)


NO_LIMITS: Final = Limits(0, 0, 0, 0)
"""The limits in a job without a budget. Nothing reads them."""


@dataclass(frozen=True)
class Bill:
    """The bill's classes for the episodes of a group."""

    purpose: Purpose
    sampled_by: SampledBy = "servers"
    model: str | None = None
    """The model whose prices apply. None for the job's own model."""

    @property
    def classes(self) -> tuple[str, str, str]:
        """The classes of prompts, of cached prompts, and of sampled tokens."""
        prompt, cached, sampled = classes_of(self.purpose)
        return of(prompt, self.model), of(cached, self.model), of(sampled, self.model)

    @property
    def discarded(self) -> str:
        """The class of tokens that were sampled for nothing."""
        return of(UsageClass.DISCARDED, self.model)


def of_attempts(limits: Limits, bill: Bill, sampled: int, attempts: int) -> Counter[Slot]:
    """The most that `attempts` attempts at one episode may be billed for, including their share of training.

    Questions to judges and endpoints are left out, because each is reserved before it is asked.

    Args:
        sampled: most tokens that an attempt samples.
        attempts: the number of attempts. One counts, and the others before it may be lost.
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
    """The most that rewarding a group as a whole may use, without questions to judges."""
    found: Counter[Slot] = Counter()
    if bill.purpose in (Purpose.TRAIN, Purpose.PREFLIGHT):
        found[(SANDBOX,)] = limits.judging_seconds
    return +found


def of_ended(record: EpisodeRecord, bill: Bill) -> Counter[Slot]:
    """The most that an ended attempt may be billed for, whatever happens to its group.

    Its questions to judges, and tokens that an endpoint sampled, are left out.
    """
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
    """The most training tokens that a finished group can still add to the bill."""
    found: Counter[Slot] = Counter()
    found[(TRAIN,)] = _rows(group.scored)
    return +found


def of_judgements(found: Iterable[Judgement]) -> Counter[Slot]:
    """The cost of questions to judges."""
    used: Counter[Slot] = Counter()
    for each in found:
        used[(of(UsageClass.JUDGE_PROMPT, each.model),)] += each.prompt_tokens
        used[(of(UsageClass.JUDGE_SAMPLE, each.model),)] += each.sampled_tokens
    return +used


def total(parts: Iterable[Amounts]) -> Counter[Slot]:
    """The sum of amounts."""
    found: Counter[Slot] = Counter()
    for part in parts:
        found.update(part)
    return found


def _rows(episodes: Sequence[EpisodeRecord]) -> int:
    """The most tokens that a step trains on: every row, with context and action."""
    return sum(len(row.tokens) for episode in episodes for row in episode.rows)
