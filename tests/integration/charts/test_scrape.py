"""A real Prometheus scrapes by the chart's PodMonitors and raises the chart's alerts.

There are two releases, each with a namespace of jobs. Their pods serve what the product's own exporters
write.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from chart import FIRST_BUILD_S, render
from observed_cluster import PASSED, World, evaluating, job, stamp
from prometheus_client import generate_latest
from prometheus_server import Pod, Prometheus, exposing, prometheus_server, scrape_configs

from headway_api.config import Identity
from headway_api.document import Json
from headway_api.signals import SignalName
from headway_coordinator.metrics.prometheus import Exporter, Sample
from headway_operator.cache import Cache
from headway_operator.plan.planner import utc_now
from headway_operator.telemetry import Telemetry
from headway_sandbox.broker.metrics import Metrics
from headway_sandbox.broker.pool import Counts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]
Text = Callable[[], bytes]
RELEASES = {"headway": ("headway-system", "red"), "next": ("next-system", "blue")}
"""Release -> its own namespace, and the namespace that it watches."""
JOB = "refunds"
"""A job of this name is in each namespace."""
FAILED = "returns"
"""A failed job, which the leading operator knows too."""
SERVERS = {
    "rollout": ("RLTrainingJob", "train", "training"),
    "rollout-validation": ("RLTrainingJob", "validation", "validation"),
    "eval-rollout-0": ("RLEvalJob", "evaluation", "0"),
}
"""Suffix of the name of each rollout server's pod -> kind of job, purpose and set."""
HALTED = "exchanges"
"""A job that has paused itself. No alert may report its signals."""
LEADING = "headway"
"""The release that has a leader."""
FAILURES = 100
"""Failed reconciles between two scrapes: enough that three scrapes within 10 minutes raise the alert."""
PATIENCE_S = 60
SCRAPED = {
    *(("headway-system/headway-operator", f"operator-{replica}") for replica in range(2)),
    *(("next-system/next-headway-operator", f"operator-{replica}") for replica in range(2)),
    *(("headway-system/headway-jobs", f"{JOB}-{role}-0") for role in ("coordinator", "broker")),
    *(("next-system/next-headway-jobs", f"{JOB}-{role}-0") for role in ("coordinator", "broker")),
    *(("headway-system/headway-servers", f"{JOB}-{name}-0") for name in SERVERS),
    *(("next-system/next-headway-servers", f"{JOB}-{name}-0") for name in SERVERS),
}
"""Monitor and pod of every target that must be scraped."""


def monitoring(watched: str) -> Json:
    """The values of a release that watches this namespace."""
    return {
        "watchNamespaces": [watched],
        "prometheusRule": {"enabled": True},
        "podMonitor": {
            "enabled": True,
            "interval": "1s",
            "scrapeTimeout": "900ms",
            "relabelings": [{"targetLabel": "watches", "replacement": watched}],
            "metricRelabelings": [
                {"action": "drop", "sourceLabels": ["__name__"], "regex": "headway_sandbox_start_seconds.*"}
            ],
        },
    }


IN_TROUBLE: Json = {
    "state": "Stalled",
    "reason": "NoProgress",
    "conditions": [
        {"type": "WeightsInSync", "status": "False", "reason": "UpdateFailed"},
        {"type": "PreflightPassed", "status": "False", "reason": "CheckFailed"},
    ],
    "progress": {"step": 12, "maxSteps": 40},
    "signals": [{"name": name, "state": "Raised", "since": 3} for name in SignalName],
}
"""The status of a job with many problems. It lists more signals than a real status can."""
ENDED: Json = {
    "state": "Failed",
    "reason": "CrashLoop",
    "completionTime": stamp(utc_now()),
    "conditions": [{"type": "Failed", "status": "True", "reason": "CrashLoop"}],
    "signals": IN_TROUBLE["signals"],
}
"""The status of a failed job."""
PAUSED: Json = {
    "state": "Suspended",
    "reason": "Paused",
    "conditions": [{"type": kind, "status": "True", "reason": "Paused"} for kind in ("Suspended", "Stalled")],
    "pause": {"signal": "NothingToTrain", "step": 12, "time": stamp(utc_now())},
    "signals": IN_TROUBLE["signals"],
}
"""The status of a job that waits for a person."""


def operator(leads: bool, namespace: str) -> Text:
    """The metrics of an operator replica.

    The leading replica knows three jobs, and counts failed reconciles at each scrape.
    """
    telemetry, cache = Telemetry(), Cache()
    telemetry.count_jobs(cache)
    if leads:
        telemetry.leader.set(1)
        for name, status in ((JOB, IN_TROUBLE), (FAILED, ENDED), (HALTED, PAUSED)):
            body = job(name, status=status)
            body["metadata"] |= {"namespace": namespace, "uid": name}
            cache.put(body)

    def text() -> bytes:
        for _ in range(FAILURES if leads else 0):
            telemetry.reconciled(0.1, "CreateFailed")
        return generate_latest(telemetry.registry)

    return text


def coordinator(namespace: str) -> Text:
    samples = [Sample("usage/tokens", 12, {"class": "sample"}), Sample("rollout/reward/mean", 0.5)]
    exporter = Exporter(namespace, JOB, lambda: samples)
    exporter.observe("episodes/seconds", 2.0, outcome="Completed")
    return exporter.text


def broker(namespace: str) -> Text:
    metrics = Metrics(Identity(name=JOB, namespace=namespace, uid="uid", kind="RLTrainingJob"))
    metrics.show(Counts(starting=0, ready=2, leased=1, waiting=0))
    metrics.created()
    metrics.started(1.0)
    return partial(generate_latest, metrics.registry)


def vllm() -> bytes:
    """Metrics of a rollout server, with the one family that grows with every version of an adapter."""
    lines = 'vllm:num_requests_running{engine="0"} 2\n', 'vllm:lora_requests_info{running="policy-0.1"} 1\n'
    return "".join(lines).encode()


def templates(namespace: str) -> Iterator[tuple[str, Json]]:
    """Names and pod templates, as the operator plans them.

    They belong to a training job with a server for held-out rows, and to the servers of an evaluation of the
    same name.
    """
    body = job(JOB, status=PASSED, evaluation={"servers": "Dedicated"})
    body["metadata"]["namespace"] = namespace
    training = World(body)
    training.carry_out()
    servers = {ref: each for ref, each in evaluating().objects.items() if "-rollout" in ref[1]}
    for (kind, name), owner in (training.objects | servers).items():
        if kind in ("Deployment", "Job"):
            yield name, owner["spec"]["template"]


def pods(stack: ExitStack) -> Iterator[Pod]:
    """Every pod of both releases and of their jobs.

    A pod that has no metrics of its own serves one under the name `wrong_pod`.
    """
    for release, (home, namespace) in RELEASES.items():
        (deployment,) = render("deployment.yaml", monitoring(namespace), release, home)
        for replica in range(2):
            text = operator(release == LEADING and replica == 0, namespace)
            address = stack.enter_context(exposing(text))
            yield Pod(home, f"operator-{replica}", deployment["spec"]["template"], address)
        served = {"coordinator": coordinator(namespace), "broker": broker(namespace), "rollout": vllm}
        for name, template in templates(namespace):
            role = template["metadata"]["labels"]["app.kubernetes.io/component"]
            address = stack.enter_context(exposing(served.get(role, lambda: b"wrong_pod 1\n")))
            yield Pod(namespace, f"{name}-0", template, address)
        yield Pod(namespace, f"{JOB}-rollout-1", template, address, ready=False)


@pytest.fixture(scope="module")
def rules() -> Json:
    """The rules of the first release. Only one of them differs from the other release's."""
    made = [
        render("prometheusrule.yaml", monitoring(watched), release, home)[0]["spec"]
        for release, (home, watched) in RELEASES.items()
    ]
    assert without_release(made[0]) == without_release(made[1])
    spec: Json = made[0]
    return spec


def without_release(rules: Json) -> list[Json]:
    """The rules that do not name their release."""
    found = [rule for group in rules["groups"] for rule in group["rules"]]
    return [rule for rule in found if rule.get("alert") != "HeadwayOperatorNotScraped"]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, rules: Json) -> Iterator[Prometheus]:
    """A Prometheus that has scraped each target several times."""
    with ExitStack() as stack:
        there = list(pods(stack))
        monitors = [
            monitor
            for release, (home, watched) in RELEASES.items()
            for monitor in render("podmonitor.yaml", monitoring(watched), release, home)
        ]
        configs = [config for monitor in monitors for config in scrape_configs(monitor, there)]
        folder = tmp_path_factory.mktemp("prometheus")
        server = stack.enter_context(prometheus_server(folder, configs, rules))
        scrapes = "count(count_over_time(up[1m]) >= 3 and up == 1)"
        until(lambda: [value for _, value in server.series(scrapes)] == [len(SCRAPED)], server)
        yield server


def until(holds: Callable[[], bool], server: Prometheus) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < ends, server.ask("targets")["activeTargets"]
        time.sleep(0.2)


def test_only_pods_that_serve_metrics_are_scraped(prometheus: Prometheus) -> None:
    assert {(labels["job"], labels["pod"]) for labels, _ in prometheus.series("up")} == SCRAPED


def test_no_label_of_ours_is_renamed(prometheus: Prometheus) -> None:
    assert [label for label in prometheus.ask("labels") if label.startswith("exported_")] == []


@pytest.mark.parametrize(
    ("metric", "role", "own"),
    [
        ("headway_usage_tokens_total", "coordinator", {"class": "sample"}),
        ("headway_rollout_reward_mean", "coordinator", {}),
        ("headway_episodes_seconds_count", "coordinator", {"outcome": "Completed"}),
        ("headway_sandbox_created_total", "broker", {}),
    ],
)
def test_samples_of_a_job_have_its_name_and_namespace(
    prometheus: Prometheus, metric: str, role: str, own: Json
) -> None:
    found = {labels["namespace"]: labels for labels, _ in prometheus.series(metric)}
    for release, (home, namespace) in RELEASES.items():
        labels = found.pop(namespace)
        assert re.fullmatch(r"127\.0\.0\.1:\d+", labels.pop("instance"))
        assert labels == own | {
            "__name__": metric,
            "namespace": namespace,
            "job_name": JOB,
            "kind": "RLTrainingJob",
            "pod": f"{JOB}-{role}-0",
            "container": role,
            "endpoint": "http",
            "headway_dev_job_name": JOB,
            "watches": namespace,
            "job": f"{home}/{'headway' if release == 'headway' else 'next-headway'}-jobs",
        }
    assert found == {}


def test_vllm_samples_have_their_pods_job_purpose_and_server(prometheus: Prometheus) -> None:
    found = {
        (each["namespace"], each["pod"]): each for each, _ in prometheus.series("vllm:num_requests_running")
    }
    for release, (home, namespace) in RELEASES.items():
        for name, (kind, purpose, which) in SERVERS.items():
            labels = found.pop((namespace, f"{JOB}-{name}-0"))
            assert re.fullmatch(r"127\.0\.0\.1:\d+", labels.pop("instance"))
            assert labels == {
                "__name__": "vllm:num_requests_running",
                "engine": "0",
                "namespace": namespace,
                "job_name": JOB,
                "kind": kind,
                "purpose": purpose,
                "server": "http://127.0.0.1:8000",
                "server_set": which,
                "pod": f"{JOB}-{name}-0",
                "container": "rollout",
                "endpoint": "metrics",
                "watches": namespace,
                "job": f"{home}/{'headway' if release == 'headway' else 'next-headway'}-servers",
            }
    assert found == {}
    assert prometheus.series("vllm:lora_requests_info") == [], "it grows with every version of an adapter"


def test_jobs_are_counted_and_shown_in_their_own_namespace(prometheus: Prometheus) -> None:
    counted = {
        (labels["namespace"], labels["state"]): (count, labels["job"])
        for labels, count in prometheus.series("headway_operator_jobs")
    }
    release = "headway-system/headway-operator"
    assert counted == {("red", state): (1, release) for state in ("Stalled", "Failed", "Suspended")}
    ((labels, step),) = prometheus.series("headway_job_step")
    assert (labels["kind"], labels["namespace"], labels["job_name"]) == ("RLTrainingJob", "red", JOB)
    assert (step, labels["job"]) == (12, release)
    leaders = [(labels["namespace"], value) for labels, value in prometheus.series("headway_operator_leader")]
    assert sorted(leaders) == [("headway-system", 0), ("headway-system", 1)] + [("next-system", 0)] * 2


def test_metrics_that_the_values_drop_are_dropped(prometheus: Prometheus) -> None:
    assert prometheus.series("headway_sandbox_start_seconds_count") == []
    assert prometheus.series("headway_sandbox_pool_size") != []


def test_alerts_are_raised_by_what_was_scraped(prometheus: Prometheus, rules: Json) -> None:
    troubled = {"kind": "RLTrainingJob", "namespace": "red", "job_name": JOB}
    failed = troubled | {"job_name": FAILED, "reason": "CrashLoop"}
    expected = {
        "HeadwayOperatorWithoutLeader": {
            "namespace": "next-system",
            "job": "next-system/next-headway-operator",
        },
        "HeadwayReconcilesFail": {
            "namespace": "headway-system",
            "job": "headway-system/headway-operator",
            "reason": "CreateFailed",
        },
        "HeadwayJobStalled": troubled | {"reason": "NoProgress"},
        "HeadwayJobPaused": troubled | {"job_name": HALTED},
        "HeadwayJobFailed": failed,
        "HeadwayPreflightFailed": troubled,
        "HeadwayWeightsOutOfSync": troubled | {"reason": "UpdateFailed"},
        **{f"Headway{name}": troubled | {"signal": str(name)} for name in SignalName},
    }
    found = [rule for group in rules["groups"] for rule in group["rules"]]
    expressions = {rule["alert"]: rule["expr"] for rule in found if "alert" in rule}

    def raised() -> dict[str, list[Json]]:
        each = {name: [labels for labels, _ in prometheus.series(expr)] for name, expr in expressions.items()}
        return {name: [bare(labels) for labels in found] for name, found in each.items() if found}

    until(lambda: raised() == {name: [labels] for name, labels in expected.items()}, prometheus)
    until(lambda: len(prometheus.ask("alerts")["alerts"]) == len(expected), prometheus)
    judged = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in judged} == {"ok"}
    states = {rule["name"]: rule["state"] for rule in judged if rule["type"] == "alerting"}
    assert {name for name, state in states.items() if state == "firing"} == {"HeadwayJobFailed"}
    assert {name for name, state in states.items() if state != "inactive"} == set(expected)


def bare(labels: Json) -> Json:
    """Labels without the name that a recorded series has."""
    return {key: value for key, value in labels.items() if key != "__name__"}
