"""The bounds of an evaluation's groups, and the check that a budget has room for one group of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway_api.config import EvalConfig
from headway_api.records import Purpose, SampledBy
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_coordinator.budget.account import Shortfall
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.shown import too_small
from headway_coordinator.budget.worst import Bill, Limits


@dataclass(frozen=True)
class GroupKind:
    """Groups with the same worst case: one candidate's groups on rows, or on the samples of one suite."""

    what: str
    """The description of the kind in messages."""
    size: int
    """Number of episodes of a group."""
    bill: Bill
    limits: Limits


def episode_limits(spec: RLEvalJobSpec, context_length: int, suite: str | None) -> Limits:
    """The bounds of a candidate's episode.

    Args:
        spec: the job's spec.
        context_length: the most tokens of an episode; 0 for a candidate without rollout servers.
        suite: the suite's name, for an episode on one of its samples; None for an episode on a row.
    """
    of_suite = [each.sandbox.deadline_seconds for each in spec.suites if each.name == suite]
    return Limits(
        context_length=context_length,
        turns=None if suite is not None else spec.agent.turn_limit,
        sandbox_seconds=next(iter(of_suite), spec.environment.sandbox.deadline_seconds),
        retries=spec.rollout.max_retries,
    )


def kinds(job: EvalConfig, contexts: Mapping[str, int]) -> Iterator[GroupKind]:
    """Every kind of group that the job plays, except those of candidates with an unknown context length.

    Args:
        job: the job, with resolved candidates.
        contexts: candidate with rollout servers -> the most tokens of an episode.
    """
    spec = job.spec
    for candidate in job.candidates:
        asked = spec.entry_of(candidate.name)
        sampled_by: SampledBy = "endpoint" if asked.endpoint else "nobody" if asked.rescore else "servers"
        if sampled_by == "servers" and candidate.name not in contexts:
            continue
        model = asked.endpoint.model if asked.endpoint else job.priced_as(candidate)
        bill, context = Bill(Purpose.EVALUATION, sampled_by, model), contexts.get(candidate.name, 0)
        sizes: dict[str | None, int] = {None: spec.evaluation.group_size}
        if spec.takes_suites(candidate.name):
            sizes |= {suite.name: suite.epochs for suite in spec.suites}
        for suite, size in sizes.items():
            what = f"a group of {size} episodes of candidate {candidate.name}"
            what += f" on a sample of suite {suite}" if suite else ""
            yield GroupKind(what, size, bill, episode_limits(spec, context, suite))


def fits(budget: Budget, job: EvalConfig, contexts: Mapping[str, int]) -> str:
    """Check that the budget has room for a group of each kind. Returns the check's message.

    Each kind must be played in the end. If the budget has no room for one kind, the job cannot succeed, and
    the money for the other kinds is lost.

    Raises:
        JobError: `BudgetTooSmall`, with the smallest budget that fits all kinds.
    """
    maximum = job.spec.max_tokens
    lacking: dict[str, tuple[Shortfall, str]] = {}
    for kind in kinds(job, contexts):
        sampled = kind.limits.sampled(maximum, None)
        for shortfall in budget.least(kind.limits, kind.bill, kind.size, sampled):
            known = lacking.get(shortfall.limit.name)
            if known is None or shortfall.needed > known[0].needed:
                lacking[shortfall.limit.name] = shortfall, kind.what
    for shortfall, what in lacking.values():
        raise too_small([shortfall], what)
    return "a group of each candidate fits every limit"
