"""The check of a cluster's resource limits detects missing ones."""

from __future__ import annotations

from typing import Any

from container_limits import unheld

ALL = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": "p"}, "spec": {"containers": list(containers), **spec}}


def test_a_container_with_all_fields_passes() -> None:
    assert unheld([pod({"name": "main", "resources": ALL})]) == []


def test_missing_fields_are_named_for_every_container() -> None:
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
