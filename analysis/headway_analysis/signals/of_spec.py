"""Takes from a job's spec the settings that signals need."""

from __future__ import annotations

from headway_analysis.signals.history import Job
from headway_api.objective import episode_tokens, expand
from headway_api.spec.training import RLTrainingJobSpec


def job_of(spec: RLTrainingJobSpec) -> Job:
    """The settings of a job that signals need."""
    return Job(
        reward_low=spec.reward.range[0],
        reward_high=spec.reward.range[1],
        max_steps_off_policy=spec.algorithm.max_steps_off_policy,
        max_turns=spec.agent.turn_limit,
        updates_per_batch=spec.algorithm.updates_per_batch,
        sequence_ratio=expand(spec.algorithm, episode_tokens(spec)).ratio == "sequence",
        gradient_clip=spec.optimizer.gradient_clip,
        validates=spec.data.validation is not None and spec.evaluation.every_steps > 0,
    )
