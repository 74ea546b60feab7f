"""Metrics of episodes under SageMaker MTRL's names, counted again from the stored records.

This module shares no code with the metrics. It assumes conversations of the built-in agent, in which each
message of the model is a turn.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import isclose
from pathlib import Path

import numpy as np
from recounting import recount_module

from headway_api.document import Json

KINDS = ("unclosed", "no_name", "not_json", "arguments", "structure", "other")
"""Kinds of malformed calls."""
REASONS = (
    *("tools", "system", "dropped", "inserted", "role", "calls", "arguments", "call_id", "whitespace"),
    *("content", "again", "cut_off", "thought", "template"),
)
"""Reasons of drift."""


def read(folder: str) -> list[Json]:
    """The stored groups below a folder of the artifact store."""
    paths = sorted(Path(folder.removeprefix("file://")).rglob("*.json.gz"))
    return [json.loads(gzip.decompress(path.read_bytes())) for path in paths]


def same(found: dict[str, float], expected: dict[str, float]) -> None:
    """Assert that both have the same names, and the same values except for rounding."""
    assert sorted(found) == sorted(expected)
    wrong = {name: (found[name], expected[name]) for name in found if not near(found[name], expected[name])}
    assert wrong == {}


def near(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


def scored(groups: Iterable[Json]) -> list[Json]:
    return [e for group in groups for e in group["episodes"] if e["outcome"] != "InfraError"]


def spread(prefix: str, values: Sequence[float], only: str = "mean std min max") -> dict[str, float]:
    return {f"{prefix}{name}": float(getattr(np, name)(values or [0.0])) for name in only.split()}


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def repetition(tokens: list[int]) -> float:
    """Share of a turn's sequences of eight tokens that occurred in the turn before."""
    phrases = [tuple(tokens[at : at + 8]) for at in range(len(tokens) - 7)]
    return sum(phrase in phrases[:at] for at, phrase in enumerate(phrases)) / len(phrases) if phrases else 0.0


def is_cut(episode: Json) -> bool:
    """Whether a token limit cut one of its turns, or all of them together."""
    lengths = (turn["finish_reason"] == "length" for turn in episode["turns"])
    return bool(episode["token_limited"]) or any(lengths)


def is_out_of_turns(episode: Json, max_turns: int) -> bool:
    whole = all(turn["finish_reason"] != "length" for turn in episode["turns"])
    return episode["outcome"] == "Truncated" and whole and len(episode["turns"]) >= max_turns


def is_out_of_context(episode: Json, max_turns: int) -> bool:
    """Whether an episode was truncated for no other reason than its context length."""
    other = is_cut(episode) or is_out_of_turns(episode, max_turns) or episode["timed_out"]
    return episode["outcome"] == "Truncated" and not other


def is_answered(episode: Json) -> float:
    """The environment's metric `completion`; without it, 1 if the last message is an answer."""
    if "completion" in episode["metrics"]:
        return float(episode["metrics"]["completion"])
    if episode["outcome"] != "Completed" or not episode["messages"]:
        return 0.0
    last, turns = episode["messages"][-1], [turn for turn in episode["turns"] if turn["delivered"]]
    if last["role"] == "tool":
        return 1.0
    unread = bool(turns) and turns[-1]["malformed_tool_calls"] > 0
    words = (last.get("content") or "").strip()
    return float(last["role"] == "assistant" and not unread and not last.get("tool_calls") and bool(words))


def failures(episode: Json) -> int:
    """Number of tool results that are errors. Answers to malformed calls are the agent's and do not count."""
    made = {call["id"] for message in episode["messages"] for call in message.get("tool_calls") or []}
    answers = [message for message in episode["messages"] if message["role"] == "tool"]
    return sum(m["content"].startswith("error: ") for m in answers if m.get("tool_call_id") in made)


def reported(episodes: Sequence[Json]) -> dict[str, float]:
    """Mean of each metric of the environment, over the episodes that have it."""
    names = {name for e in episodes for name in e["metrics"]}
    return {
        name: float(np.mean([e["metrics"][name] for e in episodes if name in e["metrics"]])) for name in names
    }


def recounted(groups: list[Json], prefix: str, rates: str, max_turns: int) -> dict[str, float]:
    """Metrics that batches and evaluations have."""
    apart, tool = recount_module().apart, recount_module().tool
    episodes = scored(groups)
    turns = [turn for e in episodes for turn in e["turns"]]
    rewards = [e["reward"] for e in episodes]
    calls = [
        [call for message in e["messages"] for call in message.get("tool_calls") or []] for e in episodes
    ]
    unreadable = sum(turn["malformed_tool_calls"] for turn in turns)
    readable = sum(map(len, calls))
    failed = sum(map(failures, episodes))
    rows = [row for e in episodes for row in e["rows"]]
    branches = [row for e in episodes for row in e["rows"][1:]]
    positions = sum(len(row["tokens"]) for row in rows)
    logprobs = [p for row in rows for p, m in zip(row["logprobs"], row["mask"], strict=True) if m]
    ended = [e for group in groups for e in group["episodes"]]
    outcomes = Counter(e["outcome"] for e in ended)
    cut = [*map(is_cut, episodes)]
    context = [is_out_of_context(e, max_turns) for e in episodes]
    tools = Counter(tool(call["function"]["name"]) for made in calls for call in made)
    sums = [sum(turn["sampled_tokens"] for turn in e["turns"]) for e in episodes]
    prompts = [sum(len(r["tokens"]) - sum(r["mask"]) for r in e["rows"]) for e in episodes]
    sampled_turns = [row["tokens"][span["start"] : span["end"]] for row in rows for span in row["turns"]]
    kinds = Counter(kind for t in turns for kind, n in t["malformed_kinds"].items() for _ in range(n))
    drifted = Counter(d["reason"] for e in episodes for d in e["drifts"] for _ in range(d["count"]))
    return {
        **spread(f"{prefix}/reward/", rewards),
        f"{prefix}/reward/zero_frac": rewards.count(0) / len(rewards),
        **{f"{prefix}/reward_metrics/{apart(name)}": mean for name, mean in reported(episodes).items()},
        **spread(f"{prefix}/repetition/", [*map(repetition, sampled_turns)], "mean max"),
        f"{rates}/max_tokens_rate": np.mean(cut),
        f"{rates}/context_limit_rate": np.mean(context),
        f"{rates}/time_limit_rate": np.mean([e["timed_out"] for e in ended]),
        f"{rates}/episode_token_limit_rate": np.mean([e["token_limited"] for e in episodes]),
        **spread(f"{prefix}/turns/", [len(e["turns"]) for e in episodes], "mean min max"),
        f"{prefix}/turns/malformed_tool_call_rate": np.mean([t["malformed_tool_calls"] > 0 for t in turns]),
        f"{prefix}/turns/token_limit_rate": np.mean([t["finish_reason"] == "length" for t in turns]),
        f"{prefix}/turns/guided_share": sum(t["sampled_tokens"] for t in turns if t["guided"]) / sum(sums),
        f"{prefix}/turns/fork_rate": sum(e["forks"] for e in episodes) / len(turns),
        **{f"{prefix}/forks_of/{why}": drifted[why] / len(turns) for why in REASONS},
        **spread(f"{prefix}/rows/", [len(e["rows"]) for e in episodes], "mean max"),
        f"{prefix}/rows/branch_share": share(len(branches), len(rows)),
        f"{prefix}/rows/branch_token_share": share(sum(sum(row["mask"]) for row in branches), len(logprobs)),
        f"{prefix}/rows/repeated_share": share(sum(row["mask"].count(0) for row in branches), positions),
        **spread(f"{prefix}/tool_calls/", [len(made) for made in calls], "mean max"),
        f"{prefix}/tool_calls/failed_share": share(failed, readable),
        f"{prefix}/tool_calls/malformed_share": share(unreadable, unreadable + readable),
        **{
            f"{prefix}/tool_calls/malformed_share_of/{kind}": share(kinds[kind], unreadable + readable)
            for kind in KINDS
        },
        **{f"{prefix}/tool_calls_of/{name}": n / len(episodes) for name, n in tools.items()},
        f"{prefix}/tokens/prompt_mean": float(np.mean(prompts)),
        **spread(f"{prefix}/tokens/response_", [turn["sampled_tokens"] for turn in turns]),
        **spread(f"{prefix}/tokens/episode_", sums),
        f"{prefix}/logprob/zero_count": logprobs.count(0.0),
        f"{prefix}/logprob/zero_frac": share(logprobs.count(0.0), len(logprobs)),
        f"{prefix}/logprob/zero_per_group": logprobs.count(0.0) / len(groups),
        **spread(f"{prefix}/logprob/nz_", [p for p in logprobs if p != 0.0]),
        f"{rates}/malformed_tool_call_rate": np.mean(
            [any(t["malformed_tool_calls"] for t in e["turns"]) for e in episodes]
        ),
        f"{rates}/fork_rate": np.mean([e["forks"] > 0 for e in episodes]),
        f"{rates}/token_limit_rate": np.mean(np.logical_or(cut, context)),
        f"{rates}/turn_limit_rate": np.mean([is_out_of_turns(e, max_turns) for e in episodes]),
        **{
            f"{rates}/outcome_{name}_rate": outcomes[name] / len(ended)
            for name in ("Completed", "Truncated", "AgentError", "InfraError")
        },
    }


def validated(groups: list[Json], prefix: str, ks: Iterable[int], threshold: float) -> dict[str, float]:
    """Metrics that only evaluations have, by reward and by score. Pass metrics use every choice of k."""
    within = [[e["reward"] for e in scored([group])] for group in groups]
    found = {
        f"{prefix}/reward/num_prompts": len(groups),
        f"{prefix}/reward/rollouts_per_prompt": len(scored(groups)) / len(groups),
        f"{prefix}/episodes/completion_rate": float(np.mean([*map(is_answered, scored(groups))])),
        **spread(f"{prefix}/external_score/", [e["score"] for e in scored(groups)]),
    }
    for name in ("mean", "std", "min", "max"):
        spreads = [getattr(np, name)(row) for row in within if row]
        found[f"{prefix}/reward/{name}_within_groups"] = np.mean(spreads)
    for judge, key in (("reward", "reward"), ("external_score", "score")):
        good = [[e[key] >= threshold for e in scored([group])] for group in groups]
        found[f"{prefix}/{judge}/succeeded_rollouts"] = sum(map(sum, good))
        found[f"{prefix}/{judge}/failed_rollouts"] = sum(map(len, good)) - sum(map(sum, good))
        found[f"{prefix}/{judge}/success_threshold"] = threshold
        for k in ks:
            chosen = [list(itertools.combinations(row, k)) for row in good if len(row) >= k]
            if chosen:
                at, power = (chance(chosen, of) for of in (any, all))
                found[f"{prefix}/{judge}/pass_at_{k}"] = found[f"{prefix}/{judge}/pass_k_{k}"] = at
                found[f"{prefix}/{judge}/pass_power_{k}"] = power
    for k in ks:
        enough = [len(row) for row in within if len(row) >= k]
        found[f"{prefix}/reward/pass_prompts_{k}"] = len(enough)
        found[f"{prefix}/reward/pass_tries_{k}"] = sum(enough)
    return found


def chance(chosen: list[list[tuple[bool, ...]]], of: Callable[[Iterable[bool]], bool]) -> float:
    """Mean over the rows of the share of choices that pass."""
    return float(np.mean([np.mean([of(some) for some in row]) for row in chosen]))


def by_task(
    groups: list[Json], prefix: str, task_of: Callable[[int], str], threshold: float
) -> dict[str, float]:
    """Metrics of each task of an evaluation. `task_of`: a row's task."""
    found: dict[str, float] = {}
    for task in {task_of(group["row"]) for group in groups}:
        members = [group for group in groups if task_of(group["row"]) == task]
        scores = [e["score"] for e in scored(members)]
        found[f"{prefix}/task_rows/{task}"] = len(members)
        found[f"{prefix}/task_reward/{task}"] = float(np.mean([e["reward"] for e in scored(members)]))
        found[f"{prefix}/task_external_score/{task}"] = float(np.mean(scores))
        found[f"{prefix}/task_success/{task}"] = float(np.mean([score >= threshold for score in scores]))
    return found
