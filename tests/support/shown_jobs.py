"""Jobs as an API server holds them, in each state that `headway watch` draws."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headway_api import status as st
from headway_api.conditions import Condition, ConditionStatus
from headway_api.document import Json
from headway_api.preflight import Verdict
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_cli.pace import History

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def ago(**of: float) -> datetime:
    return NOW - timedelta(**of)


def condition(
    kind: str, status: ConditionStatus, reason: str, message: str = "", **since: float
) -> Condition:
    return Condition(
        type=kind, status=status, reason=reason, message=message, last_transition_time=ago(**since)
    )


def finding(check: str, verdict: Verdict, value: str | None, message: str) -> st.PreflightFinding:
    return st.PreflightFinding(check=check, verdict=verdict, value=value, message=message)


def of(kind: str, name: str, status: RLTrainingJobStatus | RLEvalJobStatus) -> Json:
    metadata = {"namespace": "team", "name": name, "resourceVersion": "1", "uid": "u"}
    return {
        "apiVersion": "headway.dev/v1alpha1",
        "kind": kind,
        "metadata": metadata,
        "spec": {},
        "status": status.as_object(),
    }


def pending() -> Json:
    """Return a job of which nothing is known yet."""
    return of("RLTrainingJob", "refund-desk", RLTrainingJobStatus())


def training() -> Json:
    """Return a job in mid-training, with a budget, an estimate, and a signal."""
    limit = st.BudgetLimit(name="usd", limit="20", spent="3.21", reserved="0.4", left="16.39")
    tokens = st.BudgetLimit(name="tokens.sample", limit="9000000", spent="1204331", reserved="0", left="1")
    signal = st.Signal(
        name="EntropyFalling",
        state="Raised",
        since=31,
        value="0.12",
        threshold="0.2",
        message="entropy fell from 0.61 to 0.12 in 10 steps: "
        "raise spec.algorithm.entropy.coefficient to 0.01",
    )
    suspect = st.Signal(
        name="TurnsTruncated",
        state="Suspect",
        since=41,
        value="0.08 (0.05 to 0.12)",
        threshold="0.05",
        message="8 % of turns end at 512 tokens: raise spec.rollout.sampling.maxTokens",
    )
    remedy = st.Remediation(
        number=1,
        step=33,
        remedy="RaiseEntropy",
        signal="EntropyFalling",
        action="entropy.coefficient 0 -> 0.01",
        state="Watching",
    )
    status = RLTrainingJobStatus(
        state="Training",
        reason="Stepping",
        start_time=ago(hours=2, minutes=3),
        conditions=[
            condition("Accepted", "True", "Accepted", hours=2),
            condition("Progressing", "True", "Stepping", hours=1, minutes=41),
            condition("RolloutReady", "True", "PodsReady", hours=1),
            condition("Healthy", "False", "EntropyFalling", "EntropyFalling, raised at step 31", minutes=30),
            condition("BudgetLow", "False", "BudgetLeft", hours=2),
        ],
        progress=st.TrainingProgress(step=42, max_steps=100, episodes=10_752, evaluating=40),
        reward=st.Reward(mean="0.4375", valid="0.52"),
        validation=st.Validation(
            step=40,
            reward="0.6",
            external_score="0.62",
            score="0.62 ± 0.06",
            baseline_external_score="0.41",
            best=st.BestValidation(step=30, external_score="0.64"),
        ),
        usage=st.Usage(
            prefill_tokens=1_874_220,
            sample_tokens=1_204_331,
            train_tokens=2_911_006,
            evaluation_tokens=702_114,
            cost="3.21",
            unpriced=["sandboxSeconds"],
        ),
        estimate=st.Estimate(
            basis="Running", time=ago(hours=1), low="6.2", likely="8.1", high="11", seconds=14_400
        ),
        budget=st.Budget(limits=[limit, tokens]),
        signals=[signal, suspect, st.Signal(name="RewardFlat", state="Clear")],
        remediations=[remedy],
        roles=[
            st.Role(name="coordinator", desired=1, ready=1),
            st.Role(name="learner", desired=1, ready=1),
            st.Role(name="rollout", desired=2, ready=1, restarts=3),
            st.Role(name="broker", desired=1, ready=1),
        ],
        preflight=st.Preflight(
            state="Warned",
            episodes=64,
            summary="1 warned, 1 unknown, 12 passed",
            findings=[
                finding("foothold", "Warn", "0.03 (0 to 0.1)", "2 of 64 episodes succeed: give easier rows"),
                finding("throughput", "Unknown", None, "the learner has taken no step"),
                finding("splits", "Pass", "0", "no row twice"),
            ],
        ),
    )
    return of("RLTrainingJob", "refund-desk", status)


def stuck() -> Json:
    """Return a job whose servers find no image."""
    why = "rollout-0: ErrImagePull: localhost/headway/rollout:dev not found: set images.rollout of the chart"
    status = RLTrainingJobStatus(
        state="Stalled",
        reason="ImagePullFailed",
        start_time=ago(minutes=9),
        conditions=[
            condition("RolloutReady", "False", "ImagePullFailed", why, minutes=8),
            condition("Stalled", "True", "ImagePullFailed", why, minutes=3),
        ],
        progress=st.TrainingProgress(max_steps=100),
        roles=[st.Role(name="rollout", desired=1)],
    )
    return of("RLTrainingJob", "refund-desk", status)


def paused() -> Json:
    """Return a job paused by a signal: a person has to decide how it goes on."""
    pause = st.Pause(
        signal="RewardCollapsed",
        step=57,
        time=ago(minutes=5),
        message="the reward fell from 0.7 to 0.02 within 4 steps: go back to step 50, and halve learningRate",
        resume="headway resume refund-desk",
    )
    status = RLTrainingJobStatus(
        state="Suspended",
        reason="Paused",
        start_time=ago(hours=5),
        conditions=[
            condition("RolloutReady", "False", "PodsNotReady", "rollout: 0 of 2 pods", minutes=4),
            condition("Suspended", "True", "Paused", minutes=4),
        ],
        progress=st.TrainingProgress(step=57, max_steps=100),
        reward=st.Reward(mean="0.02"),
        estimate=st.Estimate(basis="Running", time=ago(hours=4), seconds=20_000),
        usage=st.Usage(sample_tokens=1_000, cost="0.5"),
        pause=pause,
    )
    return of("RLTrainingJob", "refund-desk", status)


def complete() -> Json:
    """Return a completed job, with a judgement on the test split."""
    status = RLTrainingJobStatus(
        state="Complete",
        reason="MaxStepsReached",
        start_time=ago(hours=6),
        completion_time=ago(minutes=2),
        conditions=[
            condition("RolloutReady", "False", "PodsNotReady", minutes=2),
            condition("Complete", "True", "MaxStepsReached", minutes=2),
        ],
        progress=st.TrainingProgress(step=100, max_steps=100, finished="MaxSteps"),
        reward=st.Reward(mean="0.81", valid="0.74"),
        validation=st.Validation(step=100, external_score="0.79", score="0.79 ± 0.05"),
        test=st.Test(
            step=90,
            rows=240,
            tuned=st.TestResult(external_score="0.8 (0.75 to 0.85)"),
            base=st.TestResult(external_score="0.42 (0.36 to 0.48)"),
            external_score_difference="0.38 (0.31 to 0.45), p 0.0002",
        ),
        usage=st.Usage(prefill_tokens=4_000_000, sample_tokens=3_000_000, train_tokens=7_000_000, cost="7.9"),
    )
    return of("RLTrainingJob", "refund-desk", status)


def evaluation() -> Json:
    """Return an evaluation with a gate and two candidates, half measured."""
    score = st.Interval(value="0.83", low="0.78", high="0.88")
    tuned = st.CandidateResult(
        name="tuned",
        state="Running",
        rows=118,
        tries=472,
        external_score=score,
        score="0.83 ± 0.05",
        difference=st.Difference(baseline="base", value="0.21", low="0.12", high="0.3", p="0.001"),
        cost="1.2",
        suites=[st.SuiteResult(name="gsm8k", score="0.31 ± 0.06")],
    )
    base = st.CandidateResult(
        name="base", state="Complete", rows=240, tries=960, score="0.62 ± 0.06", cost="0.8", infra_errors=2
    )
    status = RLEvalJobStatus(
        state="Evaluating",
        reason="Evaluating",
        start_time=ago(minutes=31),
        conditions=[condition("Progressing", "True", "Evaluating", minutes=24)],
        progress=st.EvalProgress(groups=358, of_groups=480),
        results=[base, tuned],
        gate=st.GateResult(result="Pending", message="tuned must beat base by more than 0.05"),
        usage=st.Usage(evaluation_tokens=3_411_870, cost="2"),
        roles=[st.Role(name="rollout", desired=1, ready=1)],
    )
    return of("RLEvalJob", "refund-desk-eval", status)


def watched(job: Json) -> History:
    """Return what a watch saw of a job in 20 minutes: a step or row, and 260,000 tokens, each minute."""
    history = History()
    progress, usage = job["status"].get("progress", {}), job["status"].get("usage", {})
    key = "groups" if "groups" in progress else "step"
    tokens = "evaluationTokens"
    for minute in range(20, -1, -1):
        earlier = {
            **job["status"],
            "progress": {**progress, key: max(0, progress.get(key, 0) - minute)},
            "usage": {**usage, tokens: usage.get(tokens, 0) + (20 - minute) * 260_000} if usage else {},
        }
        history = history.seen({**job, "status": earlier}, ago(minutes=minute))
    return history
