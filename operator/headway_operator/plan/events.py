"""What is told once, as a Kubernetes Event, because nobody may look at the status. Pure.

An event's name is a function of the job's uid and of the fact's key. There is one for each, whoever records
it again; the API server keeps it for an hour by default.

An operator that runs tells what stands in a status and was not told before. One that has just started knows
less: what its predecessor recorded, as far as that is still there, and what the status says. So it takes for
told what stands there, but for what is too new to have been forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from headway_api.document import Json
from headway_operator.plan.context import JobStatus
from headway_operator.plan.fact import Fact
from headway_operator.plan.facts import facts, has_begun, over

REPORTER: Final = "headway-operator"
MESSAGE_LIMIT: Final = 1024
"""The API server takes no longer message."""
REMEMBERED: Final = timedelta(minutes=30)
"""What has been recorded within this time is still there: the API server keeps events for longer."""


def news(status: JobStatus, told: Collection[str]) -> list[Fact]:
    """What there is to tell of a status; `told` are the keys of what was told before."""
    return [fact for fact in (*over(told, status), *facts(status)) if fact.key not in told]


def told_before(status: JobStatus, recorded: Collection[str], now: datetime) -> set[str]:
    """What an operator that has just started may take for told.

    Args:
        status: as it is stored, before this operator changes it.
        recorded: keys of the job's events that are still there.
        now: the time.
    """
    told = {fact.key for fact in facts(status) if not _is_new(fact, recorded, now)}
    return told | {*recorded} | ({"started.once"} if has_begun(status) else set())


def _is_new(fact: Fact, recorded: Collection[str], now: datetime) -> bool:
    """Whether a fact is so young that its event would still be there, had there been one."""
    if fact.key in recorded:
        return False
    since = fact.at or fact.not_before
    if since is not None and now - since < REMEMBERED:
        return True
    # It has come after one that is still remembered.
    return any(key.startswith(f"{fact.series}.") for key in recorded)


def is_old(status: JobStatus, now: datetime) -> bool:
    """Whether all that can have happened to a job has been told long ago."""
    return status.completion_time is not None and now - status.completion_time > REMEMBERED


def keys(raw: Json, recorded: Iterable[Json]) -> set[str]:
    """The keys of a job's events."""
    stem = _name(raw, "")
    found = (event["metadata"]["name"] for event in recorded)
    return {name.removeprefix(stem) for name in found if name.startswith(stem)}


def event(raw: Json, fact: Fact, now: datetime) -> Json:
    """The Event that tells a fact of a job."""
    metadata = raw["metadata"]
    stamp = (fact.at or now).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = fact.message
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": _name(raw, fact.key), "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": raw["apiVersion"],
            "kind": raw["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning" if fact.warning else "Normal",
        "reason": fact.reason,
        "message": text if len(text) <= MESSAGE_LIMIT else f"{text[: MESSAGE_LIMIT - 3]}...",
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def _name(raw: Json, key: str) -> str:
    return f"{raw['metadata']['name']}.{raw['metadata']['uid']}.{key}"
