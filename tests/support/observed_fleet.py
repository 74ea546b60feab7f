"""An operator's view of several jobs without a cluster: the real planner, and the real telemetry.

One job gets the statuses that its coordinator writes. The other jobs are in different fixed states.
"""

from __future__ import annotations

import copy
import threading
import time
from datetime import UTC, datetime, timedelta

from observed_cluster import PASSED, World, evaluating, job
from prometheus_client import generate_latest

from headway_api import names
from headway_api.accelerators import Holder
from headway_api.document import Json
from headway_api.grants import Grant
from headway_api.spec.budget import RLBudget
from headway_api.spec.lifecycle import limits_of
from headway_coordinator.status import JobUpdate
from headway_operator.cache import Cache
from headway_operator.plan import grants
from headway_operator.telemetry import SUCCESS, Telemetry


class Fleet:
    """Jobs in the cache of an operator that is the leader."""

    def __init__(self, namespace: str, name: str, steps: int) -> None:
        self.world = _running(job(name, schedule={"maxSteps": steps}), namespace)
        self._budget: Json = {
            "apiVersion": names.API_VERSION,
            "kind": names.BUDGET_KIND,
            "metadata": {"name": names.BUDGET_NAME, "namespace": namespace, "uid": "uid-of-the-budget"},
            "spec": {"usd": "500", "tokens": {"sample": 10**9}},
        }
        self.telemetry = Telemetry()
        self.telemetry.leader.set(1)
        self._cache, self._version, self._lock = Cache(), 1, threading.Lock()
        self.telemetry.count_jobs(self._cache)
        for world in (self.world, *_others(namespace)):
            self._put(world.body)
        self._share()
        self.telemetry.reconciled(0.02, "Conflict")

    def coordinator_says(self, status: Json) -> JobUpdate:
        """Write a status as the coordinator, and reconcile; returns what the coordinator reads back."""
        began = time.monotonic()
        with self._lock:
            known = {each["type"]: each for each in self.world.body["status"].get("conditions", [])}
            known |= {each["type"]: each for each in status.get("conditions", [])}
            self.world.body["status"] |= copy.deepcopy(status | {"conditions": [*known.values()]})
            self.world.now = datetime.now(UTC)
            self._share()
            for item in self.world.carry_out().wanted:
                self.telemetry.applied(item.ref[0], "unchanged")
            self._put(self.world.body)
            grant = Grant.model_validate(self.world.body["status"]["grant"])
        self.telemetry.reconciled(time.monotonic() - began, SUCCESS)
        return JobUpdate(accelerator_seconds={Holder("learner", "nvidia.com/gpu"): 60}, grant=grant)

    def _share(self) -> None:
        """Share the namespace's budget, so that the job gets its grant."""
        budget = RLBudget.model_validate(self._budget)
        claims = [grants.claim(self.world.body)]
        found = grants.share(limits_of(budget.spec), budget.status, claims)
        self._budget["status"] = grants.status(budget, found).as_object()
        self.world.budget = self._budget
        self._put(self._budget)

    def text(self) -> bytes:
        """The leading replica's answer to a scrape."""
        with self._lock:
            return generate_latest(self.telemetry.registry)

    def templates(self) -> dict[str, Json]:
        """Pod templates of the job, by the name of their Job or Deployment."""
        objects = self.world.objects.items()
        return {
            name: owner["spec"]["template"]
            for (kind, name), owner in objects
            if kind in ("Deployment", "Job")
        }

    def _put(self, body: Json) -> None:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        assert self._cache.put(copy.deepcopy(body))


def _running(body: Json, namespace: str) -> World:
    """A job in which every role runs, created now."""
    now = datetime.now(UTC)
    body["metadata"] |= {"namespace": namespace, "creationTimestamp": now.isoformat()}
    body["status"] = copy.deepcopy(PASSED)
    world = World(body)
    world.now = now
    world.carry_out()
    world.ready(*names.ROLES[:4])
    world.carry_out()
    return world


def _others(namespace: str) -> list[World]:
    """A stalled job, a failed job and a running evaluation."""
    stalled = _running(job("invoices", schedule={"maxSteps": 200}), namespace)
    stalled.body["metadata"]["uid"] = "uid-of-invoices"
    reading = {"step": 12, "maxSteps": 200, "stalled": "no sandbox is to be had: 0/4 nodes are available"}
    falling = {"name": "EntropyFalling", "state": "Suspect", "since": 11, "value": "0.14"}
    stalled.body["status"] |= {"progress": reading, "reward": {"mean": "0.31"}, "signals": [falling]}
    stalled.carry_out()
    failed = _running(job("triage"), namespace)
    failed.body["metadata"]["uid"] = "uid-of-triage"
    failed.gave_up("coordinator", "DatasetEmpty", "no row is left", "spec.data.train.uri")
    failed.carry_out()
    measuring = evaluating()
    measuring.body["metadata"] |= {"namespace": namespace, "uid": "uid-of-the-evaluation"}
    measuring.body["status"] |= {"progress": {"groups": 5, "ofGroups": 16, "serverSets": [0]}}
    since = datetime.now(UTC) - timedelta(minutes=3)
    for world in (stalled, failed, measuring):
        world.body["metadata"]["creationTimestamp"] = since.isoformat()
    return [stalled, failed, measuring]
