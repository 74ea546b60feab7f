"""Computes metrics of jobs and budgets from their status. A metric exists as long as its resource. Pure.

These functions read the stored status without its pydantic models. A missing or broken field gives no sample
and affects no other sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from headway_api import metrics, names
from headway_api.conditions import TERMINAL
from headway_api.document import Json
from headway_api.signals import STATE_VALUES
from headway_operator.plan.reading import manager_of

OF_CONDITION: Final = {"BudgetLow": "low", "BudgetExhausted": "exhausted"}
WORD_LIMIT: Final = 128
"""Maximum characters of a label's value."""


@dataclass(frozen=True)
class Sample:
    """One sample of a job or a budget."""

    name: str
    """The name in `headway_api.metrics`, without the part before the slash."""
    value: float
    more: tuple[str, ...] = ()
    """Values of the labels that come after the labels that identify the job or budget."""


def samples(job: Json) -> Iterator[Sample]:
    """All samples of a stored job."""
    yield Sample("info", 1, _particulars(job))
    yield Sample("active", int(is_active(job)))
    for path, name in _numbers(job["kind"]):
        yield from _sample(name, _number(_at(job, *path)))
    for path, name in MOMENTS:
        yield from _sample(f"{name}_timestamp_seconds", _moment(_at(job, *path)))
    for known in _items(job, "status", "conditions"):
        yield Sample("condition", 1, tuple(_word(known.get(key)) for key in ("type", "status", "reason")))
    for signal in _items(job, "status", "signals"):
        yield from _sample("signal", _signal_state(signal.get("state")), _word(signal.get("name")))
    for role in _items(job, "status", "roles"):
        for field, name in ROLE.items():
            yield from _sample(name, _number(role.get(field)), _word(role.get("name")))
    for result in _items(job, "status", "results"):
        score = _number(_at(result, "externalScore", "value"))
        yield from _sample("candidate_external_score", score, _word(result.get("name")))


def of_budget(budget: Json) -> Iterator[Sample]:
    """All samples of a namespace's stored budget."""
    for limit in _items(budget, "status", "limits"):
        for field in ("limit", "spent", "left"):
            yield from _sample(field, _number(limit.get(field)), _word(limit.get("name")))
    for known in _items(budget, "status", "conditions"):
        if (name := OF_CONDITION.get(str(known.get("type")))) is not None:
            yield Sample(name, int(known.get("status") == "True"))


def labels_of(job: Json) -> tuple[str, str, str]:
    """Values of the labels that identify the job. They are the first labels of each of its samples."""
    metadata = job["metadata"]
    return job["kind"], metadata["namespace"], metadata["name"]


def state_of(job: Json) -> str:
    """The job's state in one word; Pending until the operator has written a state."""
    return _word(_at(job, "status", "state")) or "Pending"


def is_active(job: Json) -> bool:
    """Whether the job should be running: it has not ended, paused itself or exhausted its budget, and nobody
    suspended or deleted it."""
    ended = any(
        known.get("type") in TERMINAL and known.get("status") == "True"
        for known in _items(job, "status", "conditions")
    )
    exhausted = _at(job, "status", "budget", "exhaustedTime") is not None
    suspended = _at(job, "spec", "suspend") is True or _is_paused(job) or exhausted
    return not ended and not suspended and not job["metadata"].get("deletionTimestamp")


_COMMON: Final = ((("status", "usage", "cost"), "cost"),)
_TRAINING: Final = (
    (("status", "progress", "step"), "step"),
    (("status", "progress", "maxSteps"), "max_steps"),
    (("status", "progress", "episodes"), "episodes"),
    (("status", "reward", "mean"), "reward"),
    (("status", "validation", "externalScore"), "external_score"),
    (("status", "validation", "best", "externalScore"), "best_external_score"),
    (("status", "validation", "baselineExternalScore"), "baseline_external_score"),
)
_EVALUATION: Final = (
    (("status", "progress", "groups"), "groups"),
    (("status", "progress", "ofGroups"), "max_groups"),
)
MOMENTS: Final = (
    (("metadata", "creationTimestamp"), "created"),
    (("status", "startTime"), "started"),
    (("status", "progress", "updatedTime"), "updated"),
    (("status", "completionTime"), "completed"),
)
ROLE: Final = {"restarts": "restarts", "desired": "pods_desired", "ready": "pods_ready"}


def _is_paused(job: Json) -> bool:
    """Whether a signal has paused the job, and nobody has resumed it. The pause begins with the signal, while
    the pods are still stopping."""
    paused = _moment(_at(job, "status", "pause", "time"))
    return paused is not None and paused != _moment(_at(job, "status", "resumedPause"))


def _numbers(kind: str) -> Sequence[tuple[tuple[str, ...], str]]:
    return (*_COMMON, *(_TRAINING if kind == names.TRAINING_KIND else _EVALUATION))


def _particulars(job: Json) -> tuple[str, ...]:
    """Values of the labels of `info`, in the family's order."""
    found = {
        "state": state_of(job),
        "reason": _at(job, "status", "reason"),
        "loss": _at(job, "status", "algorithm", "loss") or _at(job, "spec", "algorithm", "loss"),
        "base_model": _base_model(job),
        "manager": manager_of(job),
    }
    wanted = metrics.family("job/info").labels[len(metrics.OF_JOB) :]
    return tuple(_word(found[label]) for label in wanted)


def _base_model(job: Json) -> str:
    """The model that is trained, or that all candidates share; empty if there are several."""
    if job["kind"] == names.TRAINING_KIND:
        return _word(_at(job, "spec", "model", "base"))
    bases = {_word(candidate.get("base")) for candidate in _items(job, "status", "candidates")}
    return bases.pop() if len(bases) == 1 else ""


def _sample(name: str, value: float | None, *more: str) -> Iterator[Sample]:
    if value is not None:
        yield Sample(name, value, more)


def _at(body: Any, *path: str) -> Any:
    for key in path:
        body = body.get(key) if isinstance(body, dict) else None
    return body


def _items(body: Any, *path: str) -> list[Json]:
    found = _at(body, *path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _word(value: Any) -> str:
    """A label's value; empty if it is not text. An unpaired surrogate would break the whole response."""
    return value[:WORD_LIMIT].encode(errors="replace").decode() if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    """A finite number, from a JSON number or a decimal text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _moment(value: Any) -> float | None:
    """Unix time of a Kubernetes timestamp."""
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _signal_state(value: Any) -> float | None:
    return next((number for state, number in STATE_VALUES.items() if state == value), None)
