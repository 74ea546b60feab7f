"""How Prometheus is told to scrape, as helm renders it."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from chart import FIRST_BUILD_S, render

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]
REGION = {"targetLabel": "region", "replacement": "eu-1"}
NO_SANDBOXES = {"action": "drop", "sourceLabels": ["__name__"], "regex": "headway_sandbox_.*"}


def endpoints(**settings: Any) -> list[dict[str, Any]]:
    """Of the operator's and the jobs' monitor."""
    monitors = render("podmonitor.yaml", {"podMonitor": {"enabled": True, **settings}})
    assert [monitor["metadata"]["name"] for monitor in monitors] == ["headway-operator", "headway-jobs"]
    found = [monitor["spec"]["podMetricsEndpoints"] for monitor in monitors]
    assert [len(each) for each in found] == [1, 1]
    return [only for (only,) in found]


def test_labels_of_samples_stand() -> None:
    usual = {"port": "http", "honorLabels": True, "interval": "30s"}
    assert endpoints() == [usual, usual]


def test_all_that_is_set_is_handed_on() -> None:
    settings: dict[str, Any] = {
        "interval": "1m30s",
        "scrapeTimeout": "500ms",
        "relabelings": [REGION],
        "metricRelabelings": [NO_SANDBOXES],
    }
    told = {"port": "http", "honorLabels": True, **settings}
    assert endpoints(**settings) == [told, told]


@pytest.mark.parametrize("empty", ["", None])
def test_what_is_not_set_is_left_to_prometheus(empty: str | None) -> None:
    bare = {"port": "http", "honorLabels": True}
    assert endpoints(interval=empty) == [bare, bare]


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": "30"},
        {"scrapeTimeout": "10s1m"},
        {"relabelings": [{"target": "region"}]},
        {"metricRelabelings": [{"action": "remove"}]},
    ],
)
def test_a_slip_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        endpoints(**wrong)
    assert next(iter(wrong)) in refused.value.stderr
