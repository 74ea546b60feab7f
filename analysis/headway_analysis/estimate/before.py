"""Estimates usage and cost of a job before its first episode, from its spec, rows and prompts."""

from __future__ import annotations

from collections.abc import Sequence

from headway_analysis.estimate import limits, whole
from headway_analysis.estimate import plan as plans
from headway_analysis.estimate.candidates import Part, PartProgress, of_evaluation, sets_of
from headway_analysis.estimate.plan import preflight_episodes
from headway_analysis.estimate.whole import Estimate, Price
from headway_api.config import EvalConfig
from headway_api.spec.training import RLTrainingJobSpec

UNKNOWN_START = "the first messages of an episode are not known"


def plan_of(spec: RLTrainingJobSpec, *, train: int, validation: int = 0, test: int = 0) -> plans.Plan:
    """How much a training job plays, its preflight included.

    Args:
        spec: the job's spec.
        train: rows of spec.data.train.
        validation: rows of spec.data.validation that are measured, at most evaluation.maxRows.
        test: rows of spec.data.test.
    """
    asked, size = spec.preflight, spec.algorithm.group_size
    samples = asked.policy != "Off" and asked.episodes > 0 and train > 0
    preflight = preflight_episodes(asked.episodes, size, train) if samples else 0
    return plans.of_training(spec, train=train, validation=validation, test=test, preflight=preflight)


def of_training_job(
    spec: RLTrainingJobSpec, plan: plans.Plan, context_length: int, prompts: Sequence[float], price: Price
) -> Estimate:
    """The estimate of a training job before its first episode.

    Args:
        spec: the job's spec.
        plan: how many episodes the job plays.
        context_length: maximum tokens of an episode.
        prompts: tokens of the first prompts of rows sampled across the data; empty if they are unknown.
        price: today's prices.
    """
    asked = limits.Limits(
        context_length=context_length,
        max_tokens=spec.rollout.sampling.max_tokens,
        max_turns=spec.agent.turn_limit,
        token_limit=spec.rollout.episode_token_limit,
        seconds=float(spec.rollout.timeout_seconds),
        group_size=spec.algorithm.group_size,
    )
    episode = limits.of_episode(limits.prompt_of(prompts, asked), asked)
    return whole.before(plan, episode, price, "" if prompts else UNKNOWN_START)


def of_eval_job(job: EvalConfig, parts: Sequence[Part], price: Price, why: str = "") -> Estimate:
    """The estimate of an evaluation before its first episode.

    Args:
        job: the job, with its candidates resolved.
        parts: what the candidates play (`parts_of`).
        price: today's prices.
        why: the reason why nothing more is known, which the estimate repeats.
    """
    standings = [PartProgress(part, part.groups) for part in parts]
    return of_evaluation(standings, price, sets=sets_of(job, {}), why=why)
