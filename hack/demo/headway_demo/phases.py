"""Where the wall clock went: set-up, sampling, training, weight sync, evaluation, which add up to all of it.

The demo's own steps before the job are set-up, and so is the job's way to its first episode. That way is pods
and model, and the preflight from its first baseline episode to its verdict.

Training and publishing are the learner's own metrics, kept with each step's report. MLflow has how long
servers took to sample with new weights, and how long validations took. Without it, a validation's length is
read off its episodes, and only the publishing of a weight sync is known. Sampling is what is left once
episodes run: the time for which the learner waited for them. If rollouts run ahead of the learner, sampling
    during training counts as training.
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
    """From apply to the first episode that counts, without the preflight: pods and model."""
    preflight: float
    """From the first baseline episode to the verdict. The server that samples it is needed anyway."""
    sampling: float
    training: float
    weight_sync: float
    evaluation: float
    afterwards: Mapping[str, float]
    """Each step after the job's end."""

    @property
    def total(self) -> float:
        """The seconds of all phases."""
        job = (self.start, self.preflight, self.sampling, self.training, self.weight_sync, self.evaluation)
        return sum((*self.set_up.values(), *job, *self.afterwards.values()))

    def lines(self) -> Iterator[tuple[float, str]]:
        """Seconds and name of each phase, as lines of the report."""
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
    """The phases of a run.

    Args:
        timings: the demo's steps in their order, with their seconds.
        job: name of the step that lasts from apply to the job's end.
        start_s: seconds of that step before the first episode that counts.
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
        # Below 0 if servers took weights while the learner trained: both phases count that time.
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
    """Seconds from the first baseline episode to the preflight's verdict; 0 where nothing was sampled."""
    conditions = [known for known in job["status"]["conditions"] if known["type"] == "PreflightPassed"]
    begun = [float(e["started_at"]) for group in baseline for e in (*group["episodes"], *group["discarded"])]
    if not conditions or not begun:
        return 0.0
    return max(0.0, datetime.fromisoformat(conditions[0]["lastTransitionTime"]).timestamp() - min(begun))


def durations(validations: Mapping[int, Sequence[Group]]) -> dict[int, float]:
    """Step -> seconds from a validation's first episode's start to its last one's end."""
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
    """The metrics that only MLflow has, from the server behind a local port."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"http://127.0.0.1:{port}")
    return {
        name: {metric.step: metric.value for metric in client.get_metric_history(run_id, name)}
        for name in (WEIGHT_SYNC, EVALUATION)
    }
