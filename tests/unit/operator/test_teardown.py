"""The teardown of a job, whatever ended it: in order, with a finalizer until nothing is left."""

from __future__ import annotations

import copy

import pytest
from observed_cluster import PASSED, PLATFORM, World, job, running

from headway_api import names
from headway_api.document import Json

FOUR = names.ROLES[:4]


def completed() -> World:
    world = running()
    world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    world.carry_out()
    return world


def failed() -> World:
    world = running()
    world.gave_up("learner", "ModelNotLoadable", "no such file")
    world.carry_out()
    return world


def suspended() -> World:
    world = running()
    world.body["spec"]["suspend"] = True
    world.carry_out()
    return world.ready("sandbox")


def refused() -> World:
    """A job that ran, and whose spec the platform now refuses."""
    world = running()
    world.platform = PLATFORM.model_copy(update={"caps": PLATFORM.caps.model_copy(update={"sandboxes": 1})})
    world.carry_out()
    assert world.body["status"]["reason"] == "InvalidSpec"
    return world


SITUATIONS = {
    "complete": completed,
    "failed": failed,
    "deleted": lambda: running().deleted(),
    "deleted while suspending": lambda: suspended().deleted(),
    "deleted when it was complete": lambda: completed().deleted(),
    "deleted when it was refused": lambda: refused().deleted(),
}


@pytest.fixture(params=SITUATIONS)
def ending(request: pytest.FixtureRequest) -> World:
    """A job in teardown, with a sandbox."""
    world: World = SITUATIONS[request.param]()
    return world.ready("sandbox")


def kinds(bodies: tuple[Json, ...]) -> set[str]:
    return {body["kind"] for body in bodies}


def test_everything_goes_in_order_and_the_job_last(ending: World) -> None:
    assert ending.has_finalizer
    assert kinds(ending.carry_out().to_delete) <= {"Job", "Deployment"}
    assert ending.plan().to_delete == (), "the broker still lives, and would replace a sandbox"
    ending.gone("broker")
    assert [body["metadata"]["name"] for body in ending.carry_out().to_delete] == ["refunds-sandbox-0"]
    assert ending.plan().to_delete == (), "pods are ending, and may need what is left"
    ending.gone(*FOUR)
    assert kinds(ending.carry_out().to_delete) >= {"NetworkPolicy", "RoleBinding", "ConfigMap", "Secret"}
    assert ending.has_finalizer, "what was deleted may not be gone"
    assert ending.objects == {}
    ending.carry_out()
    assert not ending.has_finalizer


def test_a_sandbox_ends_before_its_policy_and_account(ending: World) -> None:
    """The order holds however long the sandbox takes to end."""
    for role in ("", *names.ROLES):
        assert ("Pod", "refunds-sandbox-0") in ending.objects
        assert {("NetworkPolicy", "refunds-sandbox"), ("ServiceAccount", "refunds-sandbox")} <= set(
            ending.objects
        )
        for body in ending.plan().to_delete:
            if body["kind"] != "Pod":
                ending.objects.pop((body["kind"], body["metadata"]["name"]), None)
        ending.gone(role)


def test_a_teardown_goes_on_without_a_new_event(ending: World) -> None:
    for role in ("", *names.ROLES):
        made = ending.gone(role).carry_out()
        if ending.objects:
            assert made.requeue_after is not None
            assert made.requeue_after <= 1


def test_nothing_is_made_during_a_teardown(ending: World) -> None:
    for role in ("", *names.ROLES):
        assert ending.gone(role).carry_out().wanted == ()


def test_the_secret_is_deleted_by_name_first(ending: World) -> None:
    ending.carry_out()
    to_delete = ending.gone(*names.ROLES).plan().to_delete
    uid = ending.body["metadata"]["uid"]
    own = [names.keys_secret("refunds", uid), names.token_secret("refunds", uid)]
    assert [(body["kind"], body["metadata"]["name"]) for body in to_delete[:2]] == [
        ("Secret", n) for n in own
    ]
    assert [body["kind"] for body in to_delete].count("Secret") == 2


def test_an_operator_completes_a_teardown_of_its_predecessor() -> None:
    world = running().deleted()
    world.objects = {key: body for key, body in world.objects.items() if key[0] == "NetworkPolicy"}
    assert kinds(world.carry_out().to_delete) == {"NetworkPolicy", "Secret"}
    world.carry_out()
    assert not world.has_finalizer


@pytest.mark.parametrize("over", [{"phase": "Failed"}, {"grace": -1}])
def test_a_broker_that_can_make_no_pods_keeps_no_sandbox_alive(over: Json) -> None:
    world = running().ready("sandbox").deleted()
    world.carry_out()
    if "phase" in over:
        world.pod("broker", phase="Failed")
    else:
        world.ending("broker", over["grace"])
    assert [body["metadata"]["name"] for body in world.plan().to_delete] == ["refunds-sandbox-0"]


class TestHeld:
    """Which jobs have the finalizer, and since when."""

    def test_a_job_has_the_finalizer_before_its_first_object(self) -> None:
        for spec in ({}, {"suspend": True}):
            made = World(job(**spec)).plan()
            assert made.wanted
            assert made.finalizer

    def test_a_refused_job_without_objects_has_no_finalizer(self) -> None:
        world = World(job(rollout={"replicas": 65}))
        world.carry_out()
        assert not world.has_finalizer

    def test_a_refused_job_that_lost_its_objects_is_released(self) -> None:
        world = refused()
        assert world.has_finalizer
        world.objects.clear()
        world.carry_out()
        assert not world.has_finalizer

    def test_a_removed_finalizer_is_added_again(self) -> None:
        world = running()
        world.body["metadata"]["finalizers"] = []
        world.carry_out()
        assert world.has_finalizer

    def test_a_deleted_job_without_objects_is_released_at_once(self) -> None:
        world = World(job(status=copy.deepcopy(PASSED)))
        world.body["metadata"]["finalizers"] = [names.FINALIZER_TEARDOWN]
        made = world.deleted().plan()
        assert (made.finalizer, made.to_delete, made.status) == (False, (), None)

    def test_an_ended_job_needs_no_operator_to_be_deleted(self) -> None:
        world = completed()
        world.objects.clear()
        world.carry_out()
        assert not world.has_finalizer

    @pytest.mark.parametrize("deleted", [False, True])
    def test_another_controllers_job_is_not_touched(self, deleted: bool) -> None:
        world = World(job(managedBy="kueue.x-k8s.io/multikueue"))
        if deleted:
            world.deleted()
        assert world.plan().finalizer is None


class TestLate:
    """A deletion that hangs says which object it waits for."""

    def left(self, *roles: str) -> World:
        world = running().deleted()
        world.carry_out()
        return world.gone(*set(FOUR) - set(roles))

    def test_a_pod_within_its_grace_period_is_not_reported(self) -> None:
        world = self.left("learner")
        world.ending("learner", grace=600)
        world.later(650).carry_out()
        assert not world.is_true("Stalled")

    def test_a_pod_beyond_its_grace_period_is_named_with_its_node(self) -> None:
        world = self.left("learner")
        world.ending("learner", grace=30)["spec"]["nodeName"] = "gpu-7"
        world.later(95).carry_out()
        condition = world.status_condition("Stalled")
        assert (condition["status"], condition["reason"]) == ("True", "Deleting")
        assert "Pod refunds-learner-0 should have been deleted by 12:00:30 UTC" in condition["message"]
        assert "gpu-7" in condition["message"]
        assert (world.body["status"]["state"], world.body["status"]["reason"]) == ("Stalled", "Deleting")
        assert not world.is_true("Reconciling")
        settled = copy.deepcopy(world.body["status"])
        world.later(60).carry_out()
        assert world.body["status"] == settled

    def test_pods_that_nobody_removes_are_named(self) -> None:
        world = self.left("learner", "rollout")
        world.later(61).carry_out()
        assert (
            "and 1 more should have been deleted by 12:00:00 UTC"
            in world.status_condition("Stalled")["message"]
        )

    def test_an_object_that_another_finalizer_holds_is_named(self) -> None:
        world = self.left()
        policy = world.objects["NetworkPolicy", "refunds-sandbox"]
        policy["metadata"]["deletionTimestamp"] = world.body["metadata"]["deletionTimestamp"]
        world.objects = {("NetworkPolicy", "refunds-sandbox"): policy}
        text = world.later(61).plan().status
        assert text is not None
        assert "finalizers" in next(c.message for c in text.conditions if c.type == "Stalled")
