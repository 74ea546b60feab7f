"""Computes what status, metrics and the final report show. The job's state is the only source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_args

from headway_analysis.billing.segments import Days, total
from headway_analysis.comparison import Comparison
from headway_analysis.measures.episodes import Evaluation, ranked, rewards, scored, spread
from headway_analysis.measures.metrics import Metrics, valid_mean
from headway_analysis.report.document import NOTES, TOO_FEW
from headway_analysis.statistics.differences import Difference
from headway_analysis.statistics.estimates import Estimate
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.field_types import DECIMAL_LENGTH
from headway_api.objective import episode_tokens, expand
from headway_api.prices import PriceBook
from headway_api.records import AbandonReason, PolicyVersion, Purpose, UsageClass
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Router
from headway_coordinator.final_test import BASE, TUNED
from headway_coordinator.gateway.turns import TurnLimiter
from headway_coordinator.ledger.events import DISCARDS
from headway_coordinator.ledger.usage import usage
from headway_coordinator.metrics.prometheus import Sample
from headway_coordinator.state import State
from headway_coordinator.training import Training

NAME_LENGTH = 128
"""The most characters of a task's name in the status."""
TOKEN_CLASSES = {*UsageClass} - {UsageClass.SANDBOX_SECONDS, UsageClass.ACCELERATOR_SECONDS}


def progress(
    training: Training, episodes: int, version: PolicyVersion | None, stalled: str | None
) -> st.TrainingProgress:
    """The progress of training."""
    state = training.state
    return st.TrainingProgress(
        step=max(0, state.step),
        max_steps=training.steps,
        epoch=training.epochs_done,
        episodes=episodes,
        policy_version=str(version) if version else None,
        updated_time=state.updated_at,
        evaluating=state.evaluating,
        stalled=stalled[:1024] if stalled else None,
        finished=state.finished,
    )


def reward(state: State) -> st.Reward | None:
    """Rewards of the last trained batch."""
    report = state.trained
    if report is None or not state.last_batch:
        return None
    mean = spread(rewards(scored(state.last_batch))).mean
    valid = valid_mean(state.last_batch, report.trained)
    return st.Reward(mean=st.decimal(mean), valid=st.decimal(valid))


def curve(state: State) -> list[Evaluation]:
    """Every validation, in the order of steps."""
    return [evaluation for _, evaluation in sorted(state.evaluations.items())]


def best(evaluations: list[Evaluation]) -> Evaluation | None:
    """The first validation of `ranked`: the highest external score among those that lost few episodes."""
    return next(iter(ranked(evaluations)), None)


def untrained(evaluations: list[Evaluation]) -> Evaluation | None:
    """The validation at step 0, if there was one."""
    return evaluations[0] if evaluations and evaluations[0].step == 0 else None


def validation(evaluations: list[Evaluation], score: tuple[int, str] | None = None) -> st.Validation | None:
    """The last validation, the validation of the untrained model, and the best one.

    Args:
        score: a validation's step and its external score as text, shown if that validation is the last one.
    """
    top = best(evaluations)
    if top is None:
        return None
    last, first = evaluations[-1], untrained(evaluations)
    return st.Validation(
        step=last.step,
        reward=st.decimal(last.reward),
        external_score=st.decimal(last.external_score),
        score=score[1] if score is not None and score[0] == last.step else None,
        baseline=st.decimal(first.reward) if first else None,
        baseline_external_score=st.decimal(first.external_score) if first else None,
        best=st.BestValidation(
            step=top.step, reward=st.decimal(top.reward), external_score=st.decimal(top.external_score)
        ),
        tasks=[_of_task(name, found) for name, found in (last.tasks or {}).items() if "reward" in found],
    )


def test(state: State) -> st.Test | None:
    """The result on the test split."""
    found = state.tested
    if found is None:
        return None
    return st.Test(
        step=found.step,
        rows=found.rows,
        tuned=_of_test(found.compared, TUNED),
        base=_of_test(found.compared, BASE) if BASE in found.compared.estimates else None,
        reward_difference=_ahead(found.compared, "reward"),
        external_score_difference=_ahead(found.compared, "external_score"),
    )


def _of_test(found: Comparison, name: str) -> st.TestResult:
    return st.TestResult(
        reward=_in_words(found.estimate(name, "reward")),
        external_score=_in_words(found.estimate(name, "external_score")),
        success=_in_words(found.estimate(name, "success")),
    )


def _ahead(found: Comparison, measure: str) -> str | None:
    known = found.difference(TUNED, measure)
    words = _in_words(known)
    return words if known is None or known.p is None else f"{words}, p {st.decimal(known.p)}"


def _in_words(found: Estimate | Difference | None) -> str | None:
    if found is None:
        return None
    if found.low is None or found.high is None:
        why = NOTES.get(found.why, TOO_FEW) if isinstance(found, Estimate) and found.why else TOO_FEW
        return f"{st.decimal(found.value)} ({why})"
    return f"{st.decimal(found.value)} ({st.decimal(found.low)} to {st.decimal(found.high)})"


def test_report(state: State) -> dict[str, Any] | None:
    """The result on the test split for the report: every measure by task, with full precision."""
    found = state.tested
    if found is None:
        return None
    return {
        "step": found.step,
        "rows": found.rows,
        **{
            name: {
                task: {measure: asdict(each) for measure, each in measures.items()}
                for task, measures in by_task.items()
            }
            for name, by_task in found.compared.estimates.items()
        },
        "difference": {
            measure: asdict(each[TUNED])
            for measure, each in found.compared.differences.items()
            if TUNED in each
        },
    }


def _of_task(name: str, found: Mapping[str, float]) -> st.TaskValidation:
    return st.TaskValidation(
        name=name[:NAME_LENGTH],
        rows=round(found["rows"]),
        reward=st.decimal(found["reward"]),
        external_score=st.decimal(found["external_score"]),
        success=st.decimal(found["success"]),
    )


def algorithm(spec: RLTrainingJobSpec) -> st.Algorithm:
    """The objective, with presets resolved."""
    preset, lora = expand(spec.algorithm, episode_tokens(spec)), spec.model.effective_lora
    return st.Algorithm(
        loss=preset.loss,
        advantage=preset.advantage,
        normalize=preset.normalize,
        gamma=_number(preset.gamma),
        ratio=preset.ratio,
        surrogate=preset.surrogate,
        clip_low=_number(preset.clip_low),
        clip_high=_number(preset.clip_high),
        clip_dual=_number(preset.clip_dual),
        correction=preset.correction,
        correction_cap=_number(preset.correction_cap),
        correction_floor=_number(preset.correction_floor),
        reduction=preset.reduction,
        episode_tokens=preset.episode_tokens,
        denominator=preset.denominator,
        kl_coefficient=_number(preset.kl_coefficient),
        kl_estimator=preset.kl_estimator,
        entropy_coefficient=_number(preset.entropy_coefficient),
        plugins=list(preset.plugins),
        sampler=spec.algorithm.sampler,
        max_steps_off_policy=spec.algorithm.max_steps_off_policy,
        batch_size=spec.algorithm.batch_size,
        group_size=spec.algorithm.group_size,
        learning_rate=_number(spec.optimizer.learning_rate),
        decay=spec.optimizer.schedule.decay,
        lora_rank=None if lora is None else lora.rank,
        lora_alpha=None if lora is None else lora.alpha,
    )


def _number(value: float | None) -> str | None:
    """A number with every digit that the status has room for, so a small coefficient is not shown as 0."""
    if value is None:
        return None
    exact = f"{Decimal(repr(value)).normalize():f}"
    return exact if len(exact) <= DECIMAL_LENGTH else st.decimal(value, DECIMAL_LENGTH - 2)


def checkpoints(layout: Layout, state: State, evaluations: list[Evaluation]) -> st.Checkpoints | None:
    """The checkpoint to resume from, and the weights to serve."""
    if not state.reports:
        return None
    last = state.reports[-1]
    # The folders of some steps lack weights, so they cannot be served. At the job's end, the last step's
    # folder gets all of them.
    whole = {report.step: report.weights for report in state.reports if report.weights.whole}
    if state.exported:
        whole[last.step] = last.weights
    served = {step: st.Weights(step=step, uri=weights.uri) for step, weights in whole.items()}
    return st.Checkpoints(
        latest=st.Checkpoint(step=last.durable, uri=layout.checkpoint(last.durable)),
        best=next((served[top.step] for top in ranked(evaluations) if top.step in served), None),
        adapter=served[max(served)] if served else None,
    )


def artifacts(layout: Layout, *, reported: bool, paged: bool) -> st.Artifacts:
    """Where the results lie. `reported`: report.json was written. `paged`: report.html was written."""
    return st.Artifacts(
        uri=layout.root,
        trajectories=f"{layout.root}/trajectories",
        ledger=layout.usage,
        report=layout.report if reported else None,
        page=layout.page if paged else None,
    )


def report(
    job: str,
    spec: RLTrainingJobSpec,
    layout: Layout,
    state: State,
    days: Days,
    book: PriceBook,
    episodes: int,
) -> dict[str, Any]:
    """The summary of a finished job: success at step 0 and after, the curve, usage and cost."""
    evaluations = curve(state)
    first, top = untrained(evaluations), best(evaluations)
    return {
        "job": job,
        "finished": state.finished,
        "steps": state.step,
        "episodes": episodes,
        "before": first._asdict() if first else None,
        "after": evaluations[-1]._asdict() if evaluations else None,
        "best": top._asdict() if top else None,
        "test": test_report(state),
        "curve": [evaluation._asdict() for evaluation in evaluations],
        "usage": usage(days, book, datetime.now(UTC).date()).as_object(),
        "usageByClass": {name.value: quantity for name, quantity in total(days).items()},
        "weights": state.reports[-1].weights.uri if state.reports else None,
        "checkpoint": layout.checkpoint(state.reports[-1].durable) if state.reports else None,
        "algorithm": algorithm(spec).as_object(),
    }


def samples(
    metrics: Metrics,
    training: Training | None,
    days: Days | None,
    cost: float,
    fleets: Mapping[Purpose, Fleet],
    places: Sequence[TurnLimiter],
) -> Iterator[Sample]:
    """Everything that `/metrics` shows except histograms. There is no bill until `days` is known.

    Each of `fleets` has its own servers; `places` are their turn limiters.
    """
    yield from (Sample(name, value) for name, value in metrics.items())
    if days is not None:
        yield from bill(days, cost)
    for purpose, fleet in fleets.items():
        yield from _servers(purpose, fleet.router)
    if fleets:
        yield from _lost(list(fleets.values()))
    if training is not None:
        yield from _episodes(training)
    if places:
        yield Sample("rollout/turns_in_flight", sum(each.taken for each in places))
        yield Sample("rollout/refused_turns", sum(each.refused for each in places))


def bill(days: Days, cost: float) -> Iterator[Sample]:
    """The usage, and its cost in US dollars."""
    totals = total(days)
    for name in sorted(TOKEN_CLASSES):
        yield Sample("usage/tokens", totals[name], {"class": name.value})
    yield Sample("usage/sandbox_seconds", totals[UsageClass.SANDBOX_SECONDS])
    yield Sample("usage/cost_usd", cost)


def _servers(purpose: Purpose, router: Router) -> Iterator[Sample]:
    serving = len(router.in_rotation())
    for state, count in (("serving", serving), ("waiting", len(router.servers) - serving)):
        yield Sample("weights/servers", count, {"state": state, "purpose": purpose})
    for server in router.servers.values():
        which = {"server": server.endpoint.engine, "purpose": purpose}
        if server.version is not None:
            yield Sample("weights/version", server.version.step, which)
        if server.canary_error is not None:
            yield Sample("weights/canary_error", server.canary_error, which)
        if server.reading is not None:
            yield Sample("rollout/kv_cache_use", server.reading.kv_use, which)


def _lost(fleets: Sequence[Fleet]) -> Iterator[Sample]:
    """Counts of what went wrong on the servers, over all fleets."""
    yield Sample("weights/verification_failures", sum(fleet.verification_failures for fleet in fleets))
    yield Sample("rollout/preemptions", sum(fleet.router.preemptions for fleet in fleets))
    yield Sample("rollout/rerouted_requests", sum(fleet.reroutes for fleet in fleets))


def _episodes(training: Training) -> Iterator[Sample]:
    yield Sample("spool/groups", training.spooled)
    yield Sample("store/busy_seconds", training.store_busy)
    yield Sample("rollout/concurrency_limit", training.limiter.limit)
    for reason in get_args(AbandonReason):
        yield Sample("rollout/abandoned_groups", training.state.abandoned[reason], {"reason": reason})
    for why in DISCARDS:
        yield Sample("rollout/discarded_tokens", training.state.discarded[why], {"reason": why})
    for purpose in Purpose:
        yield Sample("episodes/in_flight", training.state.in_flight[purpose], {"purpose": purpose})
        yield Sample("episodes/retried", training.state.retried[purpose], {"purpose": purpose})
    for (outcome, of), count in training.state.ended.items():
        yield Sample("episodes/finished", count, {"outcome": outcome, "purpose": of})
