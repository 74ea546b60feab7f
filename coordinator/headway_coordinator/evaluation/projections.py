"""Projects an evaluation's state onto the status and the metrics. Nothing reads its state back from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from headway_analysis.comparison import HEADLINE, Comparison
from headway_analysis.gate import Bound, GateSpec, Verdict
from headway_analysis.measures.candidate import ALL
from headway_analysis.report.document import differing, differing_answers_note, gaps, uncounted
from headway_analysis.statistics.differences import Difference
from headway_analysis.statistics.estimates import Estimate, Why
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.conditions import Condition, ConditionType, Reason, condition, find
from headway_api.exits import JobError
from headway_api.prices import PriceBook
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.ledger.usage import usage
from headway_coordinator.metrics.prometheus import Sample
from headway_coordinator.preflight.gate import counted_tools
from headway_coordinator.recurring import RecurringCause, causes_message

TEXT = 1024
"""Maximum characters of a status text."""
RESULTS = {
    Verdict.PASSED: "Passed",
    Verdict.REFUSED: "Refused",
    Verdict.TOO_FEW_ROWS: "TooFewRows",
    Verdict.ERROR: "Error",
}


def gate_of(spec: RLEvalJobSpec) -> GateSpec | None:
    """The spec's gate, in the form in which it is judged."""
    gate = spec.gate
    if gate is None:
        return None
    return GateSpec(
        candidate=gate.candidate,
        metric=gate.metric,
        task=gate.task,
        minimum=None if gate.minimum is None else float(gate.minimum),
        minimum_of=gate.minimum_of,
        must_beat=gate.must_beat,
        margin=float(gate.margin),
        no_worse=[Bound(each.metric, float(each.margin), each.task) for each in gate.no_worse],
        max_lost=float(gate.max_lost),
        reward_range=(spec.reward.range[0], spec.reward.range[1]),
        suites=[suite.name for suite in spec.suites],
        tools=counted_tools(spec),
    )


def progress(state: EvalState, stalled: str | None) -> st.EvalProgress:
    """The progress of the evaluation."""
    return st.EvalProgress(
        groups=state.groups_done,
        of_groups=state.groups_wanted,
        server_sets=sorted(state.server_sets),
        updated_time=state.updated_at,
        stalled=stalled[:TEXT] if stalled else None,
    )


def results(state: EvalState, found: Comparison, book: PriceBook, today: date) -> list[st.CandidateResult]:
    """Each candidate's results so far."""
    return [_result(state, candidate, found, book, today) for candidate in state.candidates.values()]


def suites(name: str, found: Comparison) -> list[st.SuiteResult]:
    """A candidate's results in each suite that it was measured on."""
    scores = {suite: found.estimate(name, HEADLINE, suite) for suite in found.suites}
    return [st.SuiteResult(name=suite, score=in_a_line(score)) for suite, score in scores.items() if score]


def _result(
    state: EvalState, candidate: CandidateState, found: Comparison, book: PriceBook, today: date
) -> st.CandidateResult:
    name, tries = candidate.name, candidate.own_tries
    score = found.estimate(name, HEADLINE)
    bill = usage(candidate.days, book, today) if candidate.days else None
    known = all(each.bill_known for each in candidate.all_tries)
    text = message(candidate, bill.unpriced if bill else [])
    return st.CandidateResult(
        name=name,
        state=candidate.stage,
        reason=candidate.reason,
        message=text[:TEXT] or None,
        rows=state.rows_of(candidate),
        tries=sum(each.scored for each in tries),
        infra_errors=sum(not each.scored for each in tries),
        reward=interval(found.estimate(name, "reward")),
        external_score=interval(score),
        success=interval(found.estimate(name, "success")),
        difference=difference(name, found),
        cost=bill.cost if bill and not bill.unpriced and known else None,
        score=in_a_line(score) if score else None,
        suites=suites(name, found),
    )


def message(candidate: CandidateState, unpriced: Sequence[str]) -> str:
    """Why a candidate failed, what its measures lack, and whether rescored tool calls had other answers."""
    tries = candidate.all_tries
    missing = gaps(candidate.dropped, uncounted(tries), unpriced)
    sentences = [
        *([candidate.message] if candidate.message else ()),
        *missing,
        *differing_answers_note(differing(tries)),
    ]
    return ". ".join(sentences)


def interval(found: Estimate | None) -> st.Interval | None:
    """An estimate with its interval, in the status's form."""
    if found is None:
        return None
    return st.Interval(value=st.decimal(found.value), low=_decimal(found.low), high=_decimal(found.high))


def difference(name: str, found: Comparison) -> st.Difference | None:
    """The paired difference of the external score from the baseline."""
    if name == found.baseline or (known := found.difference(name)) is None:
        return None
    return st.Difference(
        baseline=found.baseline,
        value=st.decimal(known.value),
        low=_decimal(known.low),
        high=_decimal(known.high),
        p=_decimal(known.p_holm),
    )


def in_a_line(found: Estimate) -> str:
    """An estimate as text: the value and half the width of its interval, or why there is no interval."""
    if found.low is None or found.high is None:
        why = "every row alike" if found.why is Why.NO_SPREAD else "too few rows"
        return f"{found.value:.2f} ({why})"
    return f"{found.value:.2f} ± {(found.high - found.low) / 2:.2f}"


def headline(spec: RLEvalJobSpec, found: Comparison) -> st.Headline | None:
    """The candidate to show first, with its score: the gate's, or the best one if there is no gate."""
    name = spec.gate.candidate if spec.gate else found.best()
    if name is None or (score := found.estimate(name, HEADLINE)) is None:
        return None
    return st.Headline(candidate=name, score=in_a_line(score))


def gate(found: Comparison, finished: bool) -> st.GateResult | None:
    """The gate's verdict; pending while rows are still measured."""
    if found.gate is None:
        return None
    text = found.gate.message[:TEXT]
    return st.GateResult(result=RESULTS[found.gate.verdict] if finished else "Pending", message=text)


def gate_passed(
    spec: RLEvalJobSpec, found: Comparison | None, finished: bool, before: Sequence[Condition] = ()
) -> list[Condition]:
    """The condition GatePassed of a job with a gate. Empty if an earlier verdict must stay as it is.

    Args:
        spec: the job's spec.
        found: the latest comparison.
        finished: whether the comparison covers all rows.
        before: the conditions so far.
    """
    if spec.gate is None:
        return []
    if found is None or found.gate is None or not finished:
        known = find(before, ConditionType.GATE_PASSED)
        if known is not None and known.status != "Unknown":
            return []
        text = "the rows are still being measured"
        return [condition(ConditionType.GATE_PASSED, None, Reason.EVALUATING, text)]
    passed = found.gate.verdict is Verdict.PASSED
    reason = Reason.PASSED if passed else Reason.GATE_NOT_PASSED
    return [condition(ConditionType.GATE_PASSED, passed, reason, found.gate.message)]


def healthy(before: Sequence[Condition], failing: Sequence[RecurringCause]) -> list[Condition]:
    """The condition Healthy: false while a fault of episodes recurs, and true once it no longer does.

    Empty if no fault has ever recurred.
    """
    kind = ConditionType.HEALTHY
    if failing:
        return [condition(kind, False, Reason.EPISODES_FAILING, causes_message(failing))]
    if find(before, kind) is None:
        return []
    return [condition(kind, True, Reason.NO_SIGNAL_RAISED, "no fault of environment or agent recurs")]


def artifacts(layout: Layout, *, finished: bool, paged: bool) -> st.EvalArtifacts:
    """The addresses of the results. `paged`: whether the report's HTML page has been written."""
    return st.EvalArtifacts(
        uri=layout.root,
        trajectories=f"{layout.root}/trajectories",
        ledger=layout.usage,
        results=layout.results if finished else None,
        report=layout.report if finished else None,
        page=layout.page if paged else None,
        logs=layout.logs if finished else None,
    )


def samples(found: Comparison | None, state: EvalState | None) -> Iterator[Sample]:
    """Samples for Prometheus: measures by candidate and task, and rows and episodes by candidate."""
    if state is not None:
        for candidate in state.candidates.values():
            labels = {"candidate": candidate.name}
            yield Sample("eval/rows", state.rows_of(candidate), labels)
            yield Sample("eval/in_flight", state.in_flight[candidate.name], labels)
    if found is None:
        return
    for name, tasks in found.estimates.items():
        for task, measures in tasks.items():
            for measure, estimate in measures.items():
                yield from _with_interval("eval/measure", estimate, name, task, measure)
    for task, differences in {ALL: found.differences, **found.suites, **found.tasks}.items():
        for measure, by_candidate in differences.items():
            for name, each in by_candidate.items():
                yield from _with_interval("eval/difference", each, name, task, measure)


def _with_interval(
    family: str, found: Estimate | Difference, candidate: str, task: str, measure: str
) -> Iterator[Sample]:
    """A value, and the bounds of its interval if it has one."""
    labels = {"candidate": candidate, "task": task, "measure": measure}
    yield Sample(family, found.value, labels)
    if found.low is not None and found.high is not None:
        yield Sample(f"{family}_low", found.low, labels)
        yield Sample(f"{family}_high", found.high, labels)


def _decimal(value: float | None) -> str | None:
    return None if value is None else st.decimal(value)


def ending(state: EvalState, found: Comparison) -> JobError | None:
    """The error with which the job ends; None if it succeeds."""
    if state.failed:
        ended = [state.candidates[name] for name in state.failed]
        text = "; ".join(f"{candidate.name}: {candidate.reason}: {candidate.message}" for candidate in ended)
        return JobError("CandidateFailed", f"{text}. The results of the other candidates remain valid")
    if found.gate is not None and found.gate.verdict is not Verdict.PASSED:
        return JobError("GateNotPassed", found.gate.message, field="spec.gate")
    return None
