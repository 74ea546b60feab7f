"""A job whose status changes, and an operator that reports it by events."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from observed_cluster import START, job, stamp

from headway_api.document import Json
from headway_operator import recorder as recorders
from headway_operator.kube import Api, ApiError, ResourceKind
from headway_operator.plan.job_kinds import job_kind_of
from headway_operator.plan.reading import parse_status
from headway_operator.recorder import Recorder


class Book(Api):
    """An API server that only stores events."""

    def __init__(self) -> None:
        self.kept: dict[str, Json] = {}
        self.asked = 0
        self.refusal: Exception | None = None

    def create(self, kind: ResourceKind, namespace: str, body: Json) -> Json:
        if self.refusal is not None:
            raise self.refusal
        name = body["metadata"]["name"]
        if name in self.kept:
            raise ApiError(409, "AlreadyExists", name)
        self.kept[name] = body
        return body

    def list(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        selector: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> tuple[list[Json], str]:
        self.asked += 1
        wanted = dict(field.split("=") for field in fields.split(","))
        assert wanted.keys() == {"involvedObject.uid", "reportingComponent"}
        uid, by = wanted["involvedObject.uid"], wanted["reportingComponent"]
        found = [body for body in self.kept.values() if body["involvedObject"]["uid"] == uid]
        return [body for body in found if body["reportingComponent"] == by], "1"


class Stage:
    """A job whose status changes, an operator that records its facts, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, body: Json | None = None) -> None:
        self.now = START
        self.book = Book()
        self.operator = Recorder(self.book)
        self.body = body or job()
        monkeypatch.setattr(recorders, "utc_now", lambda: self.now)

    def later(self, minutes: float = 1) -> Stage:
        """Let time pass. Events that are an hour old disappear."""
        self.now += timedelta(minutes=minutes)
        hour_ago = stamp(self.now - timedelta(hours=1))
        kept = self.book.kept.items()
        self.book.kept = {name: body for name, body in kept if body["lastTimestamp"] > hour_ago}
        return self

    def condition(self, kind: str, status: str, reason: str, message: str = "", generation: int = 1) -> Json:
        """Set one condition as `merge` does; returns the conditions."""
        known = {each["type"]: each for each in self.body["status"].get("conditions", [])}
        before = known.get(kind, {})
        same = before.get("status") == status
        when = before["lastTransitionTime"] if same else stamp(self.now)
        fresh = {"type": kind, "status": status, "reason": reason, "message": message}
        known[kind] = fresh | {"lastTransitionTime": when, "observedGeneration": generation}
        self.body["status"]["conditions"] = list(known.values())
        return self.body["status"]

    def set(self, **status: Any) -> Stage:
        """Change fields of the status. The operator does not see it before `look`."""
        self.body["status"] |= copy.deepcopy(status)
        return self

    def look(self) -> list[tuple[str, str, str]]:
        """Let the operator see the status; returns type, reason and message of the new events."""
        known = set(self.book.kept)
        status = parse_status(job_kind_of(self.body).model, self.body)
        self.operator.look(self.body, status)
        self.operator.record(self.body, status)
        fresh = [body for name, body in self.book.kept.items() if name not in known]
        return [(body["type"], body["reason"], body["message"]) for body in fresh]

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.look()]

    def restart(self) -> Stage:
        """Replace the operator by a new one, which remembers nothing."""
        self.operator = Recorder(self.book)
        return self


def says(kind: str, status: str, reason: str, message: str = "") -> Callable[[Stage], object]:
    return lambda stage: stage.condition(kind, status, reason, message)


def signals(*states: tuple[str, str, int], healthy: str = "True") -> Callable[[Stage], object]:
    def change(stage: Stage) -> None:
        found = [{"name": name, "state": state, "since": since} for name, state, since in states]
        if found:
            found[0] |= {"value": "0.01", "threshold": "0.2", "message": "the reward fell; lower the rate"}
        stage.set(signals=found).condition("Healthy", healthy, "RewardCollapsed")

    return change
