"""Made-up sealed episodes and groups, for tests of code that only reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway_api.records import (
    Abandoned,
    EpisodeRecord,
    GroupRecord,
    Outcome,
    PolicyVersion,
    Purpose,
    TrainingRow,
    Turn,
    VersionSpan,
)
from headway_coordinator.bounds import has_lost_too_many

PROMPT, SAMPLED, CACHED = 10, 4, 3


def version(step: int, incarnation: int = 0) -> PolicyVersion:
    return PolicyVersion(incarnation=incarnation, step=step)


def sealed(
    group_id: str,
    index: int = 0,
    *,
    reward: float | None = 1.0,
    score: float | None = None,
    attempt: int = 0,
    turns: int = 2,
    step: int = 0,
    outcome: Outcome | None = None,
    messages: Sequence[dict[str, Any]] = (),
) -> EpisodeRecord:
    """An episode with equal turns in one training row. Without a reward, its outcome is InfraError."""
    tokens, mask, spans = [], [], []
    records = []
    for turn in range(turns):
        given = PROMPT if turn == 0 else 2
        tokens += [1] * given + [2] * SAMPLED
        mask += [0] * given + [1] * SAMPLED
        spans.append(VersionSpan(start=len(tokens) - SAMPLED, end=len(tokens), version=version(step)))
        records.append(
            Turn(
                index=turn,
                prompt_tokens=len(tokens) - SAMPLED,
                cached_tokens=CACHED if turn else 0,
                sampled_tokens=SAMPLED,
                finish_reason="stop",
                policy_version=version(step),
            )
        )
    failed = reward is None
    row = TrainingRow(tokens=tokens, mask=mask, logprobs=[-0.5 if m else 0.0 for m in mask], versions=spans)
    return EpisodeRecord(
        episode_id=f"{group_id}-{index}-{attempt}",
        group_id=group_id,
        index=index,
        attempt=attempt,
        outcome=outcome or (Outcome.INFRA_ERROR if failed else Outcome.COMPLETED),
        error="lost" if failed else None,
        reward=reward,
        score=None if failed else (reward if score is None else score),
        metrics={} if failed else {"accuracy": float(reward or 0)},
        messages=list(messages),
        turns=records,
        rows=[row] if turns else [],
        sandbox_seconds=1.5,
        started_at=1_700_000_000.0,
        finished_at=1_700_000_002.0,
    )


def given_up(record: EpisodeRecord) -> EpisodeRecord:
    """A copy of an episode whose agent never received its first turn. Its row trains only the later turns."""
    first, *others = record.turns
    [row] = record.rows
    left = PROMPT + SAMPLED
    mask = [0] * left + row.mask[left:]
    logprobs = [p if m else 0.0 for p, m in zip(row.logprobs, mask, strict=True)]
    kept = row.model_copy(update={"mask": mask, "logprobs": logprobs, "versions": row.versions[1:]})
    turns = [first.model_copy(update={"delivered": False}), *others]
    return record.model_copy(update={"turns": turns, "rows": [kept]})


def a_group(
    group_id: str,
    rewards: Sequence[float | None],
    *,
    step: int = 0,
    purpose: Purpose = Purpose.TRAIN,
    retried: int = 0,
) -> GroupRecord:
    """One episode for each reward, and `retried` earlier attempts of the first."""
    gone = purpose is Purpose.TRAIN and has_lost_too_many(
        len(rewards), sum(reward is None for reward in rewards)
    )
    return GroupRecord(
        group_id=group_id,
        purpose=purpose,
        row=0,
        epoch=0,
        step=step,
        episodes=[sealed(group_id, i, reward=r, step=step, attempt=retried) for i, r in enumerate(rewards)],
        discarded=[sealed(group_id, 0, reward=None, step=step, attempt=a) for a in range(retried)],
        abandoned=Abandoned(reason="TooFewScored", message="lost") if gone else None,
    )
