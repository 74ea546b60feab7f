"""Every figure of a batch or a validation, as pure functions of groups, named as in `headway_api.metrics`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headway_analysis.measures.episodes import pass_k, rewards, scored, scores, spread, success
from headway_api.records import EpisodeRecord, GroupRecord, Outcome

Figures = dict[str, float]


def batch(
    groups: Sequence[GroupRecord], step: int, *, trained: Collection[str], max_turns: int | None
) -> Figures:
    """What is reported of the batch that made `step`, besides what the learner itself reports.

    `trained` are the ids of the groups with an advantage, by the learner's word: rewards do not tell, as a
    method may take nothing from rewards that differ, and something from rewards that are equal.
    """
    return {
        **_rollout(groups, trained),
        **_analysis(groups, trained),
        **_staleness(groups, step),
        **_episodes(groups, max_turns),
    }


def validation(groups: Sequence[GroupRecord], ks: Sequence[int], threshold: float) -> Figures:
    """What is reported of a validation."""
    episodes = scored(groups)
    tries = [episode for group in groups for episode in group.episodes + group.discarded]
    succeeded = sum(success(episode, threshold) for episode in episodes)
    within = [spread(rewards(group.scored)) for group in groups if group.scored]
    figures = {
        **_spread("val/reward/", rewards(episodes)),
        "val/reward/zero_frac": _share(r == 0 for r in rewards(episodes)),
        "val/reward/rollouts_per_prompt": len(episodes) / max(1, len(groups)),
        "val/reward/num_prompts": float(len(groups)),
        "val/reward/succeeded_rollouts": float(succeeded),
        "val/reward/failed_rollouts": float(len(episodes) - succeeded),
        "val/reward/success_threshold": threshold,
        "val/external_score/mean": spread(scores(episodes)).mean,
        "timing_s/eval": _duration(tries),
        **_lengths("val", episodes, len(groups)),
    }
    for name in ("mean", "std", "min", "max"):
        figures[f"val/reward/{name}_within_groups"] = spread([getattr(s, name) for s in within]).mean
    return figures | {f"val/reward/{name}": value for name, value in pass_k(groups, ks, threshold).items()}


def _duration(episodes: Sequence[EpisodeRecord]) -> float:
    """Seconds from the first one's start to the last one's end, whatever came between."""
    if not episodes:
        return 0.0
    return max(e.finished_at for e in episodes) - min(e.started_at for e in episodes)


def _rollout(groups: Sequence[GroupRecord], trained: Collection[str]) -> Figures:
    episodes = scored(groups)
    metrics: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            metrics.setdefault(name, []).append(value)
    return {
        **_spread("rollout/reward/", rewards(episodes)),
        "rollout/reward/valid_mean": valid_mean(groups, trained),
        "rollout/reward/zero_frac": _share(r == 0 for r in rewards(episodes)),
        **{f"rollout/reward_metrics/{_word(name)}": spread(values).mean for name, values in metrics.items()},
        **_lengths("rollout", episodes, len(groups)),
    }


def valid_mean(groups: Sequence[GroupRecord], trained: Collection[str]) -> float:
    """Mean reward of the groups with an advantage."""
    return spread(rewards(scored([group for group in groups if group.group_id in trained]))).mean


def _analysis(groups: Sequence[GroupRecord], trained: Collection[str]) -> Figures:
    episodes = [episode for group in groups for episode in group.episodes]
    idle = [group for group in groups if group.group_id not in trained]
    means = [spread(rewards(group.scored)) for group in groups if group.scored]
    return {
        "analysis/batch_completion_ratio": _share(e.outcome is Outcome.COMPLETED for e in episodes),
        "analysis/batch_valid_ratio": _share(group.group_id in trained for group in groups),
        "analysis/zero_adv_groups": float(len(idle)),
        "analysis/zero_adv_nonzero_reward": float(sum(any(rewards(g.scored)) for g in idle)),
        "analysis/zero_adv_zero_reward": float(sum(not any(rewards(g.scored)) for g in idle)),
        "analysis/reward_variance_across_groups": spread([m.mean for m in means]).std ** 2,
        "analysis/mean_group_reward_spread": spread([m.max - m.min for m in means]).mean,
    }


def _staleness(groups: Sequence[GroupRecord], step: int) -> Figures:
    lags = [
        (step - 1 - span.version.step, span.end - span.start)
        for episode in scored(groups)
        for row in episode.rows
        for span in row.versions
    ]
    tokens = sum(count for _, count in lags)
    return {
        "staleness/lag_mean": sum(lag * count for lag, count in lags) / tokens if tokens else 0.0,
        "staleness/lag_max": float(max((lag for lag, _ in lags), default=0)),
    }


def _episodes(groups: Sequence[GroupRecord], max_turns: int | None) -> Figures:
    """Shares of episodes and turns; `max_turns` is None for an agent whose loop is its own."""
    episodes = [episode for group in groups for episode in group.episodes]
    turns = [turn for episode in episodes for turn in episode.turns]
    truncated = [len(e.turns) for e in episodes if e.outcome is Outcome.TRUNCATED]
    at_limit = [max_turns is not None and turns >= max_turns for turns in truncated]
    return {
        "episodes/malformed_tool_call_rate": _share(turn.malformed_tool_calls > 0 for turn in turns),
        "episodes/fork_rate": sum(e.forks for e in episodes) / len(turns) if turns else 0.0,
        "episodes/turn_limit_rate": sum(at_limit) / len(episodes) if episodes else 0.0,
        "episodes/token_limit_rate": _share(turn.finish_reason == "length" for turn in turns),
        **{f"episodes/outcome_{o.value}_rate": _share(e.outcome is o for e in episodes) for o in Outcome},
    }


def _lengths(prefix: str, episodes: Sequence[EpisodeRecord], groups: int) -> Figures:
    """Turns, tokens and log-probabilities."""
    turns = spread([float(len(episode.turns)) for episode in episodes])
    logprobs = [
        logprob
        for episode in episodes
        for row in episode.rows
        for logprob, mask in zip(row.logprobs, row.mask, strict=True)
        if mask
    ]
    certain = sum(logprob == 0.0 for logprob in logprobs)
    return {
        f"{prefix}/turns/mean": turns.mean,
        f"{prefix}/turns/min": turns.min,
        f"{prefix}/turns/max": turns.max,
        f"{prefix}/tokens/prompt_mean": spread([float(_given(episode)) for episode in episodes]).mean,
        **_spread(f"{prefix}/tokens/response_", [float(_sampled(episode)) for episode in episodes]),
        f"{prefix}/logprob/zero_count": float(certain),
        f"{prefix}/logprob/zero_frac": certain / len(logprobs) if logprobs else 0.0,
        f"{prefix}/logprob/zero_per_group": certain / groups if groups else 0.0,
        **_spread(f"{prefix}/logprob/nz_", [logprob for logprob in logprobs if logprob != 0.0]),
    }


def _given(episode: EpisodeRecord) -> int:
    return sum(len(row.tokens) - row.action_tokens for row in episode.rows)


def _sampled(episode: EpisodeRecord) -> int:
    return sum(turn.sampled_tokens for turn in episode.turns)


def _spread(prefix: str, values: Sequence[float]) -> Figures:
    found = spread(values)
    return {f"{prefix}{name}": getattr(found, name) for name in found._fields}


def _share(flags: Iterable[bool]) -> float:
    flags = list(flags)
    return sum(flags) / len(flags) if flags else 0.0


def _word(name: str) -> str:
    """A metric's name as Prometheus takes it."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)
