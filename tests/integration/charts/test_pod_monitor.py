"""The PodMonitors that Prometheus scrapes by, as helm renders them."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from chart import FIRST_BUILD_S, render

from headway_api.document import Json

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]
REGION = {"targetLabel": "region", "replacement": "eu-1"}
NO_SANDBOXES = {"action": "drop", "sourceLabels": ["__name__"], "regex": "headway_sandbox_.*"}
NO_ADAPTERS = {"action": "drop", "sourceLabels": ["__name__"], "regex": "vllm:lora_requests_info"}
KIND = {"sourceLabels": ["__meta_kubernetes_pod_label_headway_dev_job_kind"], "targetLabel": "kind"}
MONITORS = ["headway-operator", "headway-jobs", "headway-servers"]


def endpoints(**settings: Any) -> list[Json]:
    """The endpoint of the operator's monitor, of the jobs' monitor and of the servers' monitor."""
    monitors = render("podmonitor.yaml", {"podMonitor": {"enabled": True, **settings}})
    assert [monitor["metadata"]["name"] for monitor in monitors] == MONITORS
    found = [monitor["spec"]["podMetricsEndpoints"] for monitor in monitors]
    assert [len(each) for each in found] == [1, 1, 1]
    return [only for (only,) in found]


def others(endpoint: Json) -> Json:
    """Everything of an endpoint except for its relabelings."""
    return {key: value for key, value in endpoint.items() if key != "relabelings"}


def test_labels_of_our_own_samples_are_kept() -> None:
    usual = {"port": "http", "honorLabels": True, "interval": "30s"}
    operator, jobs, _ = endpoints()
    assert (operator, jobs) == (usual, usual | {"relabelings": [KIND]})


def test_vllms_samples_get_the_labels_of_their_pod() -> None:
    *_, servers = endpoints()
    assert others(servers) == {"port": "metrics", "interval": "30s", "metricRelabelings": [NO_ADAPTERS]}
    given = {rule["targetLabel"] for rule in servers["relabelings"] if "targetLabel" in rule}
    assert given == {"job_name", "kind", "purpose", "server", "server_set"}


def test_every_setting_reaches_the_monitors() -> None:
    settings: dict[str, Any] = {
        "interval": "1m30s",
        "scrapeTimeout": "500ms",
        "relabelings": [REGION],
        "metricRelabelings": [NO_SANDBOXES],
    }
    operator, jobs, servers = endpoints(**settings)
    endpoint = {"port": "http", "honorLabels": True, **settings}
    assert (operator, jobs) == (endpoint, endpoint | {"relabelings": [KIND, REGION]})
    dropped = {"metricRelabelings": [NO_SANDBOXES, NO_ADAPTERS]}
    expected = {"port": "metrics", "interval": "1m30s", "scrapeTimeout": "500ms"} | dropped
    assert others(servers) == expected
    assert servers["relabelings"][-1] == REGION


@pytest.mark.parametrize("empty", ["", None])
def test_what_is_not_set_is_left_to_prometheus(empty: str | None) -> None:
    bare = {"port": "http", "honorLabels": True}
    operator, jobs, servers = endpoints(interval=empty, servers={"metricRelabelings": []})
    assert (operator, others(jobs), others(servers)) == (bare, bare, {"port": "metrics"})


def test_vllm_may_be_left_out() -> None:
    monitors = render("podmonitor.yaml", {"podMonitor": {"enabled": True, "servers": {"enabled": False}}})
    assert [monitor["metadata"]["name"] for monitor in monitors] == MONITORS[:2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": "30"},
        {"scrapeTimeout": "10s1m"},
        {"relabelings": [{"target": "region"}]},
        {"metricRelabelings": [{"action": "remove"}]},
        {"servers": {"enable": True}},
    ],
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        endpoints(**wrong)
    assert next(iter(wrong)) in refused.value.stderr
