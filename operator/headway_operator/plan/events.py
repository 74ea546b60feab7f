"""What is told once, as a Kubernetes Event, because nobody may look at the status. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from headway_operator.plan.context import Json

REPORTER = "headway-operator"
MESSAGE_LIMIT = 1024
"""The API server takes no longer message."""


def warned(raw: Json, messages: Sequence[str], now: datetime) -> Json:
    """The Event that lists what seems unwise in a job's spec.

    Its name is a function of job and generation: there is one for each, whoever records it again.
    """
    metadata = raw["metadata"]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    text = "; ".join(messages)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{metadata['uid']}.{metadata['generation']}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": raw["apiVersion"],
            "kind": raw["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning",
        "reason": "SpecUnwise",
        "message": text if len(text) <= MESSAGE_LIMIT else f"{text[: MESSAGE_LIMIT - 3]}...",
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
