"""The look at a cluster's limits does notice."""

from __future__ import annotations

from typing import Any

from container_limits import unheld

ALL = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": "p"}, "spec": {"containers": list(containers), **spec}}


def test_a_container_that_says_everything_is_held() -> None:
    assert unheld([pod({"name": "main", "resources": ALL})]) == []


def test_what_is_missing_is_named_in_every_container() -> None:
    half = {"requests": ALL["requests"], "limits": {"cpu": "1"}}
    found = unheld(
        [
            pod(
                {"name": "main", "resources": ALL},
                {"name": "side", "resources": half},
                initContainers=[{"name": "first", "resources": {"limits": ALL["limits"]}}],
            ),
            pod({"name": "bare"}),
        ]
    )
    assert found == [
        "n/p/first: requests.cpu",
        "n/p/first: requests.memory",
        "n/p/side: limits.memory",
        "n/p/bare: requests.cpu",
        "n/p/bare: requests.memory",
        "n/p/bare: limits.cpu",
        "n/p/bare: limits.memory",
    ]
