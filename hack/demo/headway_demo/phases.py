"""Splits the demo's wall-clock time into set-up, sampling, training, weight sync and evaluation.

The phases add up to the whole time. Set-up has two parts: the demo's own steps before the job, and the job's
time until its first counted episode. The second part consists of starting pods, loading the model, and the
preflight from its first baseline episode to its verdict.

The times of training and publishing are the learner's own metrics, from each step's report. MLflow has the
times until servers sampled with new weights, and the times of validations. Without MLflow, a validation's
time comes from its episodes, and weight sync contains only the publishing. Sampling is the remaining time
after the first episode: the learner waits for episodes. If rollouts run ahead of the learner, sampling during
training counts as training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

WEIGHT_SYNC = "timing_s/weight_sync"
EVALUATION = "timing_s/eval"
Group = Mapping[str, Any]
Tracked = Mapping[str, Mapping[int, float]]
"""Name of a metric -> step -> value."""


@dataclass(frozen=True)
class Phases:
    """The seconds of each phase."""

    set_up: Mapping[str, float]
    """Each step before the job is applied: Python, cluster, images, inputs, charts."""
    start: float
    """From apply to the first counted episode, without the preflight: starting pods and loading the model."""
    preflight: float
    """From the first baseline episode to the verdict. Its rollout server would also start without a
    preflight."""
    sampling: float
    training: float
    weight_sync: float
    evaluation: float
    afterwards: Mapping[str, float]
    """Each step after the job's end."""

    @property
    def total(self) -> float:
        """The sum of all phases' seconds."""
        job = (self.start, self.preflight, self.sampling, self.training, self.weight_sync, self.evaluation)
        return sum((*self.set_up.values(), *job, *self.afterwards.values()))

    def lines(self) -> Iterator[tuple[float, str]]:
        """Seconds and name of each phase, in the order of the report's lines."""
        yield self.total, "in all"
        yield sum(self.set_up.values()) + self.start + self.preflight, "set-up, consisting of:"
        for what, seconds in self.set_up.items():
            yield seconds, f"  {what}"
        yield self.start, "  from apply to the first counted episode: pods, model"
        yield self.preflight, "  the preflight: baseline episodes, scripts, verdict"
        yield self.sampling, "sampling (the learner waits for episodes)"
        yield self.training, "training (forward, backward, optimizer, checkpoints)"
        yield self.weight_sync, "weight sync (from publishing until a server samples with the new weights)"
        yield self.evaluation, "evaluation"
        for what, seconds in self.afterwards.items():
            yield seconds, what


def split(
    timings: Mapping[str, float],
    job: str,
    start_s: float,
    steps: Sequence[Mapping[str, float]],
    sync: Mapping[int, float],
    evaluations: Mapping[int, float],
    preflight_s: float = 0.0,
) -> Phases:
    """Compute the phases of a run.

    Args:
        timings: seconds of the demo's steps, in their order.
        job: name of the step that lasts from apply to the job's end.
        start_s: seconds of that step before the first counted episode.
        steps: metrics of the steps' reports.
        sync: step -> seconds until a server sampled with its weights.
        evaluations: step -> seconds of its validation.
        preflight_s: seconds of `start_s` from the first baseline episode to the preflight's verdict.
    """
    publishing = sum(step.get("timing_s/publish_weights", 0.0) for step in steps)
    training = sum(step.get("timing_s/training", 0.0) for step in steps) - publishing
    syncing = publishing + sum(sync.values())
    evaluation = sum(evaluations.values())
    left = timings[job] - start_s - training - syncing - evaluation
    at = list(timings).index(job)
    others = [(what, seconds) for what, seconds in timings.items() if what != job]
    return Phases(
        dict(others[:at]),
        start_s - preflight_s,
        preflight_s,
        # It is below 0 if servers loaded weights while the learner trained: both phases count that time.
        max(0.0, left),
        training,
        syncing,
        evaluation,
        dict(others[at:]),
    )


def started_after(job: Mapping[str, Any], groups: Sequence[Group]) -> float:
    """Seconds from the job's creation to its first episode."""
    created = datetime.fromisoformat(job["metadata"]["creationTimestamp"]).timestamp()
    first = min(float(e["started_at"]) for group in groups for e in group["episodes"])
    return max(0.0, first - created)


def preflight_took(job: Mapping[str, Any], baseline: Sequence[Group]) -> float:
    """Seconds from the first baseline episode to the preflight's verdict; 0 without baseline episodes."""
    conditions = [known for known in job["status"]["conditions"] if known["type"] == "PreflightPassed"]
    begun = [float(e["started_at"]) for group in baseline for e in (*group["episodes"], *group["discarded"])]
    if not conditions or not begun:
        return 0.0
    return max(0.0, datetime.fromisoformat(conditions[0]["lastTransitionTime"]).timestamp() - min(begun))


def durations(validations: Mapping[int, Sequence[Group]]) -> dict[int, float]:
    """Step -> seconds from the start of a validation's first episode to the end of its last episode."""
    tries = {
        step: [e for group in groups for e in (*group["episodes"], *group["discarded"])]
        for step, groups in validations.items()
    }
    return {
        step: max(e["finished_at"] for e in episodes) - min(e["started_at"] for e in episodes)
        for step, episodes in tries.items()
    }


def step_metrics(run: Path) -> list[dict[str, float]]:
    """Metrics of each step's report, in a copy of the job's folder."""
    return [json.loads(path.read_text())["metrics"] for path in sorted((run / "steps").glob("*.json"))]


def tracked(port: int, run_id: str) -> dict[str, dict[int, float]]:
    """The metrics that only MLflow has, from the MLflow server at a local port."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"http://127.0.0.1:{port}")
    return {
        name: {metric.step: metric.value for metric in client.get_metric_history(run_id, name)}
        for name in (WEIGHT_SYNC, EVALUATION)
    }
