"""Reconstructs the requests that an evaluation sent to vLLM from its records, by episode and in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headway_api.records import EpisodeRecord, GroupRecord
from headway_api.seeds import seed
from headway_coordinator.dataset import Order, position_of
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.group import Plan

SALT = "limit"


@dataclass(frozen=True)
class Call:
    """The request of one turn, and the tokens that were sampled for it."""

    prompt: list[int]
    sampled: list[int]
    seed: int


def calls(episode: EpisodeRecord, sampling_seed: int) -> list[Call]:
    """The requests of an episode. Each one except the first depends on the answer before it.

    Raises:
        ValueError: the episode has turns that do not extend one another, so its rows do not show the prompts.
    """
    if len(episode.rows) != 1 or episode.forks:
        raise ValueError(f"{episode.episode_id} has {len(episode.rows)} rows and {episode.forks} forks")
    [row] = episode.rows
    found = []
    for turn in episode.turns:
        start, end = turn.prompt_tokens, turn.prompt_tokens + turn.sampled_tokens
        if sum(row.mask[start:end]) != turn.sampled_tokens:
            raise ValueError(f"{episode.episode_id}: turn {turn.index} is not where its tokens are counted")
        found.append(Call(row.tokens[:start], row.tokens[start:end], seed(sampling_seed, turn.index)))
    return found


def plan(groups: Iterable[GroupRecord], sampling: Sampling, job_seed: int) -> list[list[Call]]:
    """The requests of all episodes, in the order of their rows, which is the order of their starts."""
    ordered = sorted(groups, key=lambda group: group.row)
    return [
        calls(episode, sampling_seed(group, episode, sampling, job_seed))
        for group in ordered
        for episode in group.episodes
    ]


def sampling_seed(group: GroupRecord, episode: EpisodeRecord, sampling: Sampling, job_seed: int) -> int:
    """The seed from which the seeds of an episode's turns were drawn."""
    position = position_of(group.group_id)
    drawn = Plan(
        slot=Order(rows=position + 1, seed=job_seed, shuffle=False).slot(position),
        purpose=group.purpose,
        step=group.step,
        row={},
        size=len(group.episodes),
        sampling=sampling,
        job_seed=job_seed,
        candidate=group.candidate,
    )
    return drawn.task(episode.index, episode.attempt).sampling_seed


def body(model: str, call: Call, sampling: Sampling, stop: Sequence[int], salt: str = SALT) -> dict[str, Any]:
    """A request to `/inference/v1/generate` as the coordinator makes it, except for its salt."""
    return {
        "model": model,
        "cache_salt": salt,
        "token_ids": call.prompt,
        "sampling_params": {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": call.seed,
            "logprobs": 0,
            "stop_token_ids": list(stop),
            "skip_special_tokens": False,
            "detokenize": False,
        },
    }
