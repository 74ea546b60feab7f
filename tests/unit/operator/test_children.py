"""Which job an object belongs to: its owners within the namespace prove it, whatever its labels say."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from observed_cluster import UID, job, running, stamp

from headway_api import names
from headway_api.document import Json
from headway_api.exits import PERMANENT
from headway_operator.plan import children, planner, teardown
from headway_operator.plan.observed import Observed


def child(kind: str, name: str, owner: Json | None, *, role: str = "coordinator", **metadata: Any) -> Json:
    """An object with the job's labels; `owner` is its controller."""
    labels = names.job_labels("RLTrainingJob", "refunds", UID, role)
    known = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": labels} | metadata
    if owner is not None:
        known["ownerReferences"] = [reference(owner)]
    return {"kind": kind, "metadata": known}


def reference(owner: Json) -> Json:
    metadata = owner["metadata"]
    return {"kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"], "controller": True}


def chain() -> list[Json]:
    """All objects from a job down to its pods."""
    batch = child("Job", "refunds-coordinator", job())
    deployment = child("Deployment", "refunds-broker", job(), role="broker")
    replicas = child("ReplicaSet", "refunds-broker-1", deployment, role="broker")
    return [
        batch,
        deployment,
        replicas,
        child("Pod", "coordinator-pod", batch),
        child("Pod", "broker-pod", replicas, role="broker"),
        child("Pod", "sandbox-pod", job(), role="sandbox"),
        child("ConfigMap", "refunds-config", job()),
    ]


def owned(*objects: Json) -> set[str]:
    return {body["metadata"]["name"] for body in children.of(job(), objects)[0]}


def test_a_chain_of_controllers_proves_the_jobs_ownership() -> None:
    expected = {body["metadata"]["name"] for body in chain()} - {"refunds-broker-1"}
    assert owned(*chain()) == expected
    assert owned(*reversed(chain())) == expected, "in whatever order they are seen"


ELSEWHERE = {"namespace": "attacker"}
FOREIGN = {
    "labels alone": child("Pod", "foreign", None),
    "in another namespace": child("Pod", "foreign", job(), **ELSEWHERE),
    "of another owner": child("Pod", "foreign", child("ReplicaSet", "theirs", None)),
    "of a Job with the right labels and name": child("Pod", "foreign", child("Job", "refunds-learner", None)),
    "of an owner that does not control it": child("Pod", "foreign", None)
    | {"metadata": child("Pod", "foreign", job())["metadata"] | {"ownerReferences": [{"uid": UID}]}},
}


@pytest.mark.parametrize("body", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_object_belongs_to_no_job(body: Json) -> None:
    mine, leaving = children.of(job(), [*chain(), copy.deepcopy(body)])
    assert "foreign" not in {found["metadata"]["name"] for found in (*mine, *leaving)}


def test_owners_of_another_namespace_prove_nothing() -> None:
    stolen = [copy.deepcopy(body) for body in chain()]
    for body in stolen:
        body["metadata"] |= ELSEWHERE
    assert owned(*stolen) == set()


def test_an_orphaned_object_still_belongs_to_the_job() -> None:
    """`kubectl delete --cascade=orphan` removes owners, and the garbage collector deletes controllers."""
    orphans = [copy.deepcopy(body) for body in chain()]
    proved = {body["metadata"]["uid"] for body in orphans}
    for body in orphans:
        body["metadata"].pop("ownerReferences")
    stranger = child("Pod", "foreign", None)
    mine, _ = children.of(job(), [*orphans, stranger], proved)
    assert {body["metadata"]["name"] for body in mine} == owned(*chain())
    elsewhere = child("Pod", "coordinator-pod", None, **ELSEWHERE)
    assert children.of(job(), [elsewhere], proved) == ((), ())


class TestVictim:
    """A foreign pod does nothing to a running job."""

    def seen(self, **metadata: Any) -> tuple[Json, Observed]:
        world = running()
        foreign = copy.deepcopy(world.gave_up("learner", "AttackersReason", "x", "spec.x"))
        foreign["metadata"] |= {"name": "foreign", "uid": "foreign", "namespace": "team"} | metadata
        world.ready("learner")
        objects = [body for key, body in world.objects.items() if key[1] != "refunds-learner-0"]
        mine, leaving = children.of(world.body, [*objects, foreign])
        return world.body, Observed(world.now, mine, leaving=leaving)

    def test_a_foreign_pod_fails_no_job(self) -> None:
        body, observed = self.seen()
        made = planner.make(body, running().platform, observed)
        assert made.status is not None
        assert made.status.state != "Failed"
        assert not made.ending

    def test_a_foreign_pod_is_not_deleted(self) -> None:
        body, observed = self.seen()
        body["metadata"]["deletionTimestamp"] = stamp(observed.now)
        to_delete = planner.make(body, running().platform, observed).to_delete
        assert to_delete
        assert "foreign" not in {found["metadata"]["name"] for found in to_delete}

    def test_a_foreign_pod_delays_no_teardown(self) -> None:
        world = running()
        foreign = world.died("sandbox", PERMANENT)
        foreign["metadata"] |= {"finalizers": ["attacker/stay"], "deletionTimestamp": stamp(world.now)}
        mine, leaving = children.of(world.body, [foreign])
        assert (mine, leaving) == ((), ())
        world.deleted()
        made = planner.make(world.body, world.platform, Observed(world.now, mine, leaving=leaving))
        assert made.finalizer is False


class TestLeaving:
    """A pod may outlive its Job while it ends. An operator that started in the meantime must wait for it."""

    def left(self, **metadata: Any) -> tuple[Json, ...]:
        batch = child("Job", "refunds-coordinator", job())
        ends = stamp(running().later(30).now)
        pod = child("Pod", "left", batch, deletionTimestamp=ends, deletionGracePeriodSeconds=30)
        pod["metadata"] |= metadata
        return children.of(job(), [pod])[1]

    def test_a_leaving_pod_is_awaited_until_its_grace_period_ends(self) -> None:
        world = running().deleted()
        for seconds, held in ((0, None), (31, False)):
            observed = Observed(world.later(seconds).now, (), leaving=self.left())
            assert planner.make(world.body, world.platform, observed).finalizer is held

    def test_a_broker_that_ends_keeps_sandboxes_from_being_replaced(self) -> None:
        deployment = child("Deployment", "refunds-broker", job(), role="broker")
        replicas = child("ReplicaSet", "refunds-broker-1", deployment, role="broker")
        world = running()
        ends = stamp(world.later(30).now)
        broker = child("Pod", "broker", replicas, role="broker", deletionTimestamp=ends)
        sandbox = child("Pod", "sandbox", job(), role="sandbox", creationTimestamp=ends)
        mine, leaving = children.of(job(), [broker, sandbox])
        assert leaving == (broker,)
        assert teardown.stopping(Observed(world.later(-1).now, mine, leaving=leaving)) == ()
        assert teardown.stopping(Observed(world.later(2).now, mine, leaving=leaving)) == (sandbox,)

    @pytest.mark.parametrize(
        "metadata",
        [
            {"deletionGracePeriodSeconds": 86_400},
            {"ownerReferences": [{"kind": "Job", "name": "other", "uid": "x", "controller": True}]},
            {"ownerReferences": []},
            {"namespace": "attacker"},
        ],
    )
    def test_a_pod_that_only_looks_like_a_leaving_one_is_ignored(self, metadata: Json) -> None:
        assert self.left()
        assert self.left(**metadata) == ()
