"""Accelerator seconds, computed from pod times: each second counts once, whatever restarts."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_cluster import START, World, running, stamp

from headway_api import names
from headway_api.accelerators import MAX_PODS, MAX_TOTALS, Accelerators, Holder, seconds
from headway_api.document import Json
from headway_operator.plan.accelerators import KEPT, SEEN_SECONDS, held_pod, product_of, updated
from headway_operator.wire import slim

GPU = "nvidia.com/gpu"
H100 = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100"}}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def pod(uid: str = "a", role: str = "learner", count: int = 2, since: float = 0, **spec: Any) -> Json:
    """A pod that was assigned to a node at `since`."""
    limits = {"limits": {GPU: str(count), "cpu": "4"}, "requests": {GPU: str(count), "cpu": "4"}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(at(since))}
    return {
        "kind": "Pod",
        "metadata": {"uid": uid, "labels": {names.LABEL_COMPONENT: role}},
        "spec": {"containers": [{"name": role, "resources": limits}], **spec},
        "status": {"phase": "Running", "conditions": [scheduled]},
    }


def ended(body: Json, *finished: float, phase: str = "Succeeded") -> Json:
    body = copy.deepcopy(body)
    body["status"]["phase"] = phase
    body["status"]["containerStatuses"] = [
        {"name": str(n), "state": {"terminated": {"exitCode": 0, "finishedAt": stamp(at(when))}}}
        for n, when in enumerate(finished)
    ]
    return body


def deleted(body: Json, until: float) -> Json:
    return {**body, "metadata": body["metadata"] | {"deletionTimestamp": stamp(at(until))}}


def looks(*views: tuple[float, list[Json]], before: Accelerators | None = None) -> Accelerators:
    for when, pods in views:
        stored = updated(before, pods, at(when), GPU)
        # A restarted operator reads the status like this.
        before = None if stored is None else Accelerators.model_validate(stored.as_object())
    assert before is not None
    return before


def held(accounts: Accelerators) -> int:
    return sum(seconds(accounts).values())


def test_a_pod_holds_from_its_node_to_its_last_process() -> None:
    body = pod(**H100)
    found = looks((10, [body]), (100, [ended(body, 70, 90)]))
    assert seconds(found) == {Holder("learner", "NVIDIA-H100"): 2 * 90}


def test_a_pod_without_accelerators_or_a_node_holds_nothing() -> None:
    waits = pod()
    waits["status"]["conditions"][0]["status"] = "False"
    light = pod(count=0)
    assert updated(None, [waits, light], at(5), GPU) is None
    assert held_pod(light, GPU) is None


def test_an_ended_pod_that_stays_is_counted_once() -> None:
    body = ended(pod(), 40)
    views = [(when, [body]) for when in range(50, 5000, 500)]
    assert held(looks(*views)) == 80
    assert held(looks(*views, (6000, []), (7000, []), (9000, []))) == 80


def test_a_deleted_pod_ends_when_missed_or_by_its_grace_period() -> None:
    body = deleted(pod(), 130)
    assert held(looks((10, [pod()]), (100, [body]), (112, []))) == 2 * 112
    assert held(looks((10, [pod()]), (100, [body]), (900, []))) == 2 * 130


def test_a_vanished_pod_ends_when_last_known_to_be_there() -> None:
    assert held(looks((10, [pod()]), (40, []))) == 2 * 10
    assert held(looks((10, [pod()]), (10 + SEEN_SECONDS, [pod()]), (75, []))) == 2 * (10 + SEEN_SECONDS)


def test_the_status_is_written_at_changes_and_once_a_minute() -> None:
    first = updated(None, [pod()], at(10), GPU)
    assert first is not None
    assert [updated(first, [pod()], at(10 + n), GPU) is first for n in (0, 1, 59, 60)] == [
        True,
        True,
        True,
        False,
    ]
    other = updated(first, [pod(), pod("b")], at(11), GPU)
    assert other is not first
    done = looks((10, [ended(pod(), 5)]))
    assert updated(done, [ended(pod(), 5)], at(10_000), GPU) is done, "nothing is held: nothing is written"


def test_totals_absorb_old_pods_and_an_older_view_adds_nothing() -> None:
    body = ended(pod(), 40)
    gone = looks((50, [body]), (60, []))
    assert [entry.uid for entry in gone.pods] == ["a"]
    assert held(looks((70, [body]), (80, []), before=gone)) == 80
    late = looks((60 + KEPT.total_seconds(), []), before=gone)
    assert (late.pods, held(late)) == ([], 80)


def test_a_clock_that_jumps_back_reduces_no_total() -> None:
    found = looks((1000, [pod()]), (10, [pod()]), (20, [pod(), pod("b", since=5)]))
    assert found.seen_time == at(1000)
    assert seconds(found)[Holder("learner", GPU)] == 2 * 1000 + 2 * 995


def test_a_refused_pod_holds_from_its_node_to_its_last_condition() -> None:
    body = pod()
    body["status"] |= {"phase": "Failed", "containerStatuses": []}
    assert held(looks((9, [body]))) == 0


@pytest.mark.parametrize(
    ("spec", "product"),
    [
        ({}, GPU),
        (H100, "NVIDIA-H100"),
        ({"nodeSelector": {"node.kubernetes.io/instance-type": "p5.48xlarge"}}, "p5.48xlarge"),
        ({"nodeSelector": {"zone": "a"}}, GPU),
    ],
)
def test_the_product_is_what_the_pod_asks_for(spec: Json, product: str) -> None:
    assert product_of(pod(**spec), GPU) == product


def affinity(*terms: list[Json]) -> Json:
    chosen = [{"matchExpressions": expressions} for expressions in terms]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": chosen}}
    return {"affinity": {"nodeAffinity": required}}


def test_an_affinity_names_a_product_where_it_leaves_no_choice() -> None:
    one = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["L4"]}
    two = one | {"values": ["L4", "A10"]}
    assert product_of(pod(**affinity([one])), GPU) == "L4"
    assert product_of(pod(**affinity([two])), GPU) == GPU
    assert product_of(pod(**affinity([one], [two])), GPU) == GPU


def test_a_slim_pod_keeps_the_fields_that_show_accelerators() -> None:
    one = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["L4"]}
    for body in (pod(**H100), pod(**affinity([one]))):
        assert held_pod(slim(copy.deepcopy(body)), GPU) == held_pod(body, GPU)


def test_other_vendors_devices_count_and_other_resources_do_not() -> None:
    body = pod(count=0)
    body["spec"]["containers"][0]["resources"]["limits"] |= {"amd.com/gpu": "4", "vpc.amazonaws.com/efa": "8"}
    found = held_pod(body, GPU)
    assert found is not None
    assert (found.count, found.product) == (4, "amd.com/gpu")


def test_pods_beyond_the_lists_bound_are_summed_without_loss() -> None:
    many = [ended(pod(f"p{n:04d}", since=n), n + 10) for n in range(MAX_PODS)]
    full = looks((5000, many), (5001, []))
    more = looks((5002, [pod("new", since=5000)]), before=full)
    assert len(more.pods) == MAX_PODS
    assert held(more) == MAX_PODS * 20 + 2 * 2
    crowd = [pod(f"q{n}", role=f"r{n}", since=0) for n in range(MAX_TOTALS + 20)]
    spread = looks((10, crowd), (20, []), (20 + KEPT.total_seconds(), []))
    assert (len(spread.totals), held(spread)) == (MAX_TOTALS, 20 * (MAX_TOTALS + 20))


@given(
    lives=st.lists(
        st.tuples(st.integers(0, 500), st.integers(1, 900), st.integers(1, 8)), min_size=1, max_size=6
    ),
    whens=st.lists(st.integers(0, 2000), min_size=1, max_size=12),
    stays=st.integers(0, 300),
)
def test_time_of_pods_seen_ended_is_exact_whenever_looks_happen(
    lives: list[tuple[int, int, int]], whens: list[int], stays: int
) -> None:
    def view(when: int) -> list[Json]:
        found = []
        for number, (since, lasts, count) in enumerate(lives):
            body = pod(str(number), count=count, since=since)
            if since <= when < since + lasts:
                found.append(body)
            elif since + lasts <= when <= since + lasts + stays:
                found.append(ended(body, since + lasts))
        return found

    last = [since + lasts for since, lasts, _ in lives]
    moments = sorted({*whens, *last})  # the operator sees every end, and also looks at other times
    accounts = None
    for when in moments:
        stored = updated(accounts, view(when), at(when), GPU)
        accounts = None if stored is None else Accelerators.model_validate(stored.as_object())
    assert sum(seconds(accounts).values()) == sum(lasts * count for _, lasts, count in lives)


def scheduled(world: World, role: str, count: int = 1) -> Json:
    body = world.pod(role, phase="Running", conditions=[
        world.condition("Ready", True), world.condition("PodScheduled", True)
    ])  # fmt: skip
    body["spec"]["containers"][0]["resources"] = {"limits": {GPU: str(count)}}
    return body


def test_a_jobs_status_tells_what_its_pods_hold() -> None:
    world = running()
    scheduled(world, "learner", 4)
    made = world.later(30).carry_out()
    assert made.requeue_after is not None
    assert made.requeue_after <= SEEN_SECONDS
    assert [entry["count"] for entry in world.body["status"]["accelerators"]["pods"]] == [4]
    assert world.plan().status == world.plan().status


def test_the_account_goes_on_while_a_finished_job_is_taken_down() -> None:
    world = running()
    scheduled(world, "rollout")
    world.later(100).carry_out()
    now = stamp(world.now)
    done = {"type": "Complete", "status": "True", "reason": "MaxStepsReached", "message": ""}
    world.body["status"]["conditions"].append(done | {"lastTransitionTime": now})
    world.later(20)
    body = world.ending("rollout", grace=30)
    body["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    body["status"]["conditions"].append(
        {**world.condition("PodScheduled", True), "lastTransitionTime": stamp(START)}
    )
    world.carry_out()
    world.later(7).gone("rollout").carry_out()
    account = Accelerators.model_validate(world.body["status"]["accelerators"])
    assert seconds(account) == {Holder("rollout", GPU): 127}
