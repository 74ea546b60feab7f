"""Every metric of a batch or an evaluation, as pure functions of groups, named as in `headway_api.metrics`.

A rate is a share of episodes, as in SageMaker MTRL; a metric under `turns/` is a share of turns. Only the
outcome rates count episodes that stayed InfraError, because these show nothing about the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from headway_analysis.measures.episodes import (
    Judge,
    pass_counts,
    pass_k,
    reward_success,
    rewards,
    scored,
    scores,
    spread,
    success,
)
from headway_analysis.measures.explained import explained_variance
from headway_analysis.measures.names import apart, tool
from headway_analysis.measures.repetition import repetition
from headway_analysis.measures.tries import (
    COMPLETION,
    answered,
    at_context_limit,
    at_max_tokens,
    at_token_limit,
    at_turn_limit,
    tool_calls,
)
from headway_api.records import (
    FORK_REASONS,
    MALFORMED_KINDS,
    EpisodeRecord,
    GroupRecord,
    Outcome,
    TrainingRow,
    Turn,
)
from headway_api.staleness import staleness

Metrics = dict[str, float]

MAX_TOOLS = 32
"""The most tools with a metric of their own. The calls of all other tools are added up as `OTHER_TOOLS`."""
OTHER_TOOLS = "other"


def batch(
    groups: Sequence[GroupRecord],
    step: int,
    *,
    trained: Collection[str],
    max_turns: int | None,
    idle: Collection[int] = (),
) -> Metrics:
    """The metrics of the batch that made `step`, except for those that the learner itself reports.

    `trained` are the ids of the groups with an advantage, as the learner reports them. Rewards alone do not
    decide this: an advantage method may give 0 for rewards that differ, and not 0 for equal rewards.
    `max_turns` is None for an agent with a loop of its own. `idle` are steps without groups, which do not
    count as staleness.
    """
    episodes = scored(groups)
    return {
        **_spread("rollout/reward/", rewards(episodes)),
        "rollout/reward/valid_mean": valid_mean(groups, trained),
        "rollout/reward/zero_frac": _share(r == 0 for r in rewards(episodes)),
        **_spread("rollout/external_score/", scores(episodes)),
        **{
            f"rollout/reward_explained/{apart(name)}": share
            for name, share in explained_variance(groups).items()
        },
        **_reported("rollout", episodes),
        **_lengths("rollout", episodes, len(groups)),
        **_turns("rollout", episodes),
        **_rows("rollout/rows/", episodes),
        **_tools("rollout", episodes),
        **_rates("episodes", groups, max_turns),
        **_analysis(groups, trained),
        **_staleness(groups, step, idle),
    }


def evaluation(
    groups: Sequence[GroupRecord],
    ks: Sequence[int],
    threshold: float,
    prefix: str,
    *,
    max_turns: int | None = None,
) -> Metrics:
    """The metrics of rows that were measured. They are the same under any prefix (`val`, `eval`).

    Success is judged twice against `threshold`: under `<prefix>/reward/` by the reward, as MTRL does, and
    under `<prefix>/external_score/` by the external score. `max_turns` is None for an agent with a loop of
    its own.
    """
    episodes = scored(groups)
    return {
        **_spread(f"{prefix}/reward/", rewards(episodes)),
        f"{prefix}/reward/zero_frac": _share(r == 0 for r in rewards(episodes)),
        f"{prefix}/reward/rollouts_per_prompt": len(episodes) / max(1, len(groups)),
        f"{prefix}/reward/num_prompts": float(len(groups)),
        **_within(f"{prefix}/reward/", groups),
        **_judged(f"{prefix}/reward/", groups, ks, threshold, reward_success),
        **{f"{prefix}/reward/{name}": value for name, value in pass_counts(groups, ks).items()},
        **_spread(f"{prefix}/external_score/", scores(episodes)),
        **_judged(f"{prefix}/external_score/", groups, ks, threshold, success),
        **_reported(prefix, episodes),
        **_lengths(prefix, episodes, len(groups)),
        **_turns(prefix, episodes),
        **_rows(f"{prefix}/rows/", episodes),
        **_tools(prefix, episodes),
        **_rates(f"{prefix}/episodes", groups, max_turns),
        f"{prefix}/episodes/completion_rate": completion_rate(episodes),
    }


def validation(
    groups: Sequence[GroupRecord], ks: Sequence[int], threshold: float, *, max_turns: int | None = None
) -> Metrics:
    """The metrics of a validation within training."""
    found = evaluation(groups, ks, threshold, "val", max_turns=max_turns)
    return found | {"timing_s/eval": duration(groups)}


def duration(groups: Sequence[GroupRecord]) -> float:
    """Seconds from the first try's start to the last one's end, pauses included."""
    tries = [episode for group in groups for episode in group.episodes + group.discarded]
    if not tries:
        return 0.0
    return max(e.finished_at for e in tries) - min(e.started_at for e in tries)


def valid_mean(groups: Sequence[GroupRecord], trained: Collection[str]) -> float:
    """Mean reward of the groups with an advantage."""
    return spread(rewards(scored([group for group in groups if group.group_id in trained]))).mean


def completion_rate(episodes: Sequence[EpisodeRecord]) -> float:
    """Share of episodes with an answer, right or wrong. The environment's metric `completion` decides;
    without it, `tries.answered` does."""
    return spread([e.metrics.get(COMPLETION, float(answered(e))) for e in episodes]).mean


def _within(prefix: str, groups: Sequence[GroupRecord]) -> Metrics:
    """The spread of a row's tries, averaged over the rows."""
    within = [spread(rewards(group.scored)) for group in groups if group.scored]
    return {
        f"{prefix}{name}_within_groups": spread([getattr(s, name) for s in within]).mean
        for name in ("mean", "std", "min", "max")
    }


def _judged(
    prefix: str, groups: Sequence[GroupRecord], ks: Sequence[int], threshold: float, judge: Judge
) -> Metrics:
    """Successes by `judge`. `pass_k_{k}` and `pass_at_{k}` are two spellings of one metric of MTRL."""
    episodes = scored(groups)
    succeeded = sum(judge(episode, threshold) for episode in episodes)
    passed = pass_k(groups, ks, threshold, judge)
    alike = {f"pass_k_{k}": passed[f"pass_at_{k}"] for k in ks if f"pass_at_{k}" in passed}
    return {
        f"{prefix}succeeded_rollouts": float(succeeded),
        f"{prefix}failed_rollouts": float(len(episodes) - succeeded),
        f"{prefix}success_threshold": threshold,
        **{f"{prefix}{name}": value for name, value in (passed | alike).items()},
    }


def _reported(prefix: str, episodes: Sequence[EpisodeRecord]) -> Metrics:
    """Means of the numbers that the environment reported, such as the accuracy of each field."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            found.setdefault(apart(name), []).append(value)
    return {f"{prefix}/reward_metrics/{name}": spread(values).mean for name, values in found.items()}


def _analysis(groups: Sequence[GroupRecord], trained: Collection[str]) -> Metrics:
    idle = [group for group in groups if group.group_id not in trained]
    means = [spread(rewards(group.scored)) for group in groups if group.scored]
    return {
        "analysis/batch_completion_ratio": completion_rate(scored(groups)),
        "analysis/batch_valid_ratio": _share(group.group_id in trained for group in groups),
        "analysis/zero_adv_groups": float(len(idle)),
        "analysis/zero_adv_nonzero_reward": float(sum(any(rewards(g.scored)) for g in idle)),
        "analysis/zero_adv_zero_reward": float(sum(not any(rewards(g.scored)) for g in idle)),
        "analysis/reward_variance_across_groups": spread([m.mean for m in means]).std ** 2,
        "analysis/mean_group_reward_spread": spread([m.max - m.min for m in means]).mean,
    }


def _staleness(groups: Sequence[GroupRecord], step: int, idle: Collection[int]) -> Metrics:
    ages = [
        (staleness(span.version.step, step, idle), span.end - span.start)
        for episode in scored(groups)
        for row in episode.rows
        for span in row.versions
    ]
    tokens = sum(count for _, count in ages)
    return {
        "staleness/lag_mean": sum(age * count for age, count in ages) / tokens if tokens else 0.0,
        "staleness/lag_max": float(max((age for age, _ in ages), default=0)),
    }


def _rates(prefix: str, groups: Sequence[GroupRecord], max_turns: int | None) -> Metrics:
    """Shares of episodes. If `max_turns` is None, the agent's limit is unknown: no `turn_limit_rate` then."""
    ended = [episode for group in groups for episode in group.episodes]
    episodes = scored(groups)
    found = {
        f"{prefix}/malformed_tool_call_rate": _share(
            any(turn.malformed_tool_calls for turn in episode.turns) for episode in episodes
        ),
        f"{prefix}/fork_rate": _share(episode.forks > 0 for episode in episodes),
        f"{prefix}/token_limit_rate": _share(at_token_limit(e, max_turns) for e in episodes),
        f"{prefix}/max_tokens_rate": _share(map(at_max_tokens, episodes)),
        f"{prefix}/episode_token_limit_rate": _share(e.token_limited for e in episodes),
        f"{prefix}/context_limit_rate": _share(at_context_limit(e, max_turns) for e in episodes),
        f"{prefix}/time_limit_rate": _share(e.timed_out for e in ended),
        **{f"{prefix}/outcome_{o.value}_rate": _share(e.outcome is o for e in ended) for o in Outcome},
    }
    if max_turns is not None:
        found[f"{prefix}/turn_limit_rate"] = _share(at_turn_limit(e, max_turns) for e in episodes)
    return found


def _turns(prefix: str, episodes: Sequence[EpisodeRecord]) -> Metrics:
    """Turns of an episode, and shares of all turns."""
    turns = [turn for episode in episodes for turn in episode.turns]
    counts = spread([float(len(episode.turns)) for episode in episodes])
    return {
        f"{prefix}/turns/mean": counts.mean,
        f"{prefix}/turns/min": counts.min,
        f"{prefix}/turns/max": counts.max,
        f"{prefix}/turns/malformed_tool_call_rate": _share(turn.malformed_tool_calls > 0 for turn in turns),
        f"{prefix}/turns/token_limit_rate": _share(turn.finish_reason == "length" for turn in turns),
        f"{prefix}/turns/fork_rate": sum(e.forks for e in episodes) / len(turns) if turns else 0.0,
        f"{prefix}/turns/guided_share": _guided(turns),
        **{f"{prefix}/forks_of/{why}": n / len(turns) if turns else 0.0 for why, n in _drifts(episodes)},
    }


def _guided(turns: Sequence[Turn]) -> float:
    """Share of sampled tokens in turns whose sampling followed a schema."""
    sampled = sum(turn.sampled_tokens for turn in turns)
    return sum(turn.sampled_tokens for turn in turns if turn.guided) / sampled if sampled else 0.0


def _rows(prefix: str, episodes: Sequence[EpisodeRecord]) -> Metrics:
    """Training rows of an episode, and the shares of trained and of repeated tokens in its branches."""
    counts = spread([float(len(episode.rows)) for episode in episodes])
    rows = [row for episode in episodes for row in episode.rows]
    branches = [row for episode in episodes for row in _branches(episode)]
    tokens, trained = sum(len(row.tokens) for row in rows), sum(row.action_tokens for row in rows)
    in_branches = sum(row.action_tokens for row in branches)
    repeated = sum(len(row.tokens) - row.action_tokens for row in branches)
    return {
        f"{prefix}mean": counts.mean,
        f"{prefix}max": counts.max,
        f"{prefix}branch_share": len(branches) / len(rows) if rows else 0.0,
        f"{prefix}branch_token_share": in_branches / trained if trained else 0.0,
        f"{prefix}repeated_share": repeated / tokens if tokens else 0.0,
    }


def _branches(episode: EpisodeRecord) -> list[TrainingRow]:
    """An episode's training rows, without the row of its first turn. That row need not come first in the
    list."""
    turns = [min((span.turn for span in row.turns), default=0) for row in episode.rows]
    return [row for n, row in enumerate(episode.rows) if n != turns.index(min(turns))]


def _drifts(episodes: Sequence[EpisodeRecord]) -> Iterator[tuple[str, int]]:
    """For each reason, the number of turns whose history drifted."""
    found: Counter[str] = Counter()
    for drift in (drift for episode in episodes for drift in episode.drifts):
        found[drift.reason] += drift.count
    return ((reason, found[reason]) for reason in FORK_REASONS)


def _malformed(episodes: Sequence[EpisodeRecord]) -> Iterator[tuple[str, int]]:
    """For each kind of fault, the number of tool calls that could not be read."""
    found: Counter[str] = Counter()
    for turn in (turn for episode in episodes for turn in episode.turns):
        found.update(turn.malformed_kinds)
    return ((kind, found[kind]) for kind in MALFORMED_KINDS)


def _tools(prefix: str, episodes: Sequence[EpisodeRecord]) -> Metrics:
    """Tool calls of an episode: all that could be read, those of each tool, and shares of calls."""
    made = [tool_calls(episode) for episode in episodes]
    counts = spread([float(calls.readable) for calls in made])
    readable, attempts = sum(calls.readable for calls in made), sum(calls.total for calls in made)
    failed, malformed = sum(calls.failed for calls in made), sum(calls.malformed for calls in made)
    return {
        f"{prefix}/tool_calls/mean": counts.mean,
        f"{prefix}/tool_calls/max": counts.max,
        f"{prefix}/tool_calls/failed_share": failed / readable if readable else 0.0,
        f"{prefix}/tool_calls/malformed_share": malformed / attempts if attempts else 0.0,
        **{
            f"{prefix}/tool_calls/malformed_share_of/{kind}": count / attempts if attempts else 0.0
            for kind, count in _malformed(episodes)
        },
        **{
            f"{prefix}/tool_calls_of/{name}": count / len(episodes)
            for name, count in _by_tool(calls.by_tool for calls in made).items()
        },
    }


def _by_tool(made: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Calls of each tool. Tools beyond the `MAX_TOOLS` that are called most are added up as `OTHER_TOOLS`."""
    counts: Counter[str] = Counter()
    for name, calls in ((name, calls) for by_tool in made for name, calls in by_tool.items()):
        counts[tool(name)] += calls
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    found: Counter[str] = Counter({name: counts[name] for name in ordered[:MAX_TOOLS]})
    for name in ordered[MAX_TOOLS:]:
        found[OTHER_TOOLS] += counts[name]
    return found


def _lengths(prefix: str, episodes: Sequence[EpisodeRecord], groups: int) -> Metrics:
    """Tokens and log-probabilities. A response is one turn's sampled tokens, to which maxTokens applies."""
    logprobs = [
        logprob
        for episode in episodes
        for row in episode.rows
        for logprob, mask in zip(row.logprobs, row.mask, strict=True)
        if mask
    ]
    certain = sum(logprob == 0.0 for logprob in logprobs)
    repeated = spread([share for episode in episodes for share in repetition(episode)])
    responses = [[float(turn.sampled_tokens) for turn in episode.turns] for episode in episodes]
    return {
        f"{prefix}/tokens/prompt_mean": spread([float(_given(episode)) for episode in episodes]).mean,
        **_spread(f"{prefix}/tokens/response_", [tokens for turns in responses for tokens in turns]),
        **_spread(f"{prefix}/tokens/episode_", [sum(turns) for turns in responses]),
        f"{prefix}/repetition/mean": repeated.mean,
        f"{prefix}/repetition/max": repeated.max,
        f"{prefix}/logprob/zero_count": float(certain),
        f"{prefix}/logprob/zero_frac": certain / len(logprobs) if logprobs else 0.0,
        f"{prefix}/logprob/zero_per_group": certain / groups if groups else 0.0,
        **_spread(f"{prefix}/logprob/nz_", [logprob for logprob in logprobs if logprob != 0.0]),
    }


def _given(episode: EpisodeRecord) -> int:
    return sum(len(row.tokens) - row.action_tokens for row in episode.rows)


def _spread(prefix: str, values: Sequence[float]) -> Metrics:
    found = spread(values)
    return {f"{prefix}{name}": getattr(found, name) for name in found._fields}


def _share(flags: Iterable[bool]) -> float:
    flags = list(flags)
    return sum(flags) / len(flags) if flags else 0.0
