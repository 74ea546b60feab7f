"""Facts that are recorded once, as Kubernetes Events, for people who do not watch the status. Pure.

An event's name is a function of the job's uid and the fact's key. So each fact has one event, even if it is
recorded twice. The API server keeps an event for an hour by default.

A running operator records the facts of a status that it has not recorded before. An operator that has just
started knows only the status, and the events of its predecessor that still exist. So it treats a fact of the
status as recorded, unless the fact is so new that its event would still exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from headway_api.document import Json
from headway_operator.plan.context import JobStatus
from headway_operator.plan.fact import Fact
from headway_operator.plan.facts import ended_problems, facts, has_begun

REPORTER: Final = "headway-operator"
MESSAGE_LIMIT: Final = 1024
"""Maximum characters of a message that the API server accepts."""
REMEMBERED: Final = timedelta(minutes=30)
"""An event that is younger than this still exists, since the API server keeps events for longer."""


def unrecorded(status: JobStatus, recorded: Collection[str]) -> list[Fact]:
    """The facts of a status that are not recorded yet; `recorded` are the keys of those that are."""
    return [fact for fact in (*ended_problems(recorded, status), *facts(status)) if fact.key not in recorded]


def recorded_before(status: JobStatus, recorded: Collection[str], now: datetime) -> set[str]:
    """Keys of the facts that an operator that has just started treats as recorded.

    Args:
        status: the stored status, before this operator changes it.
        recorded: keys of the job's events that still exist.
        now: the current time.
    """
    old = {fact.key for fact in facts(status) if not _is_new(fact, recorded, now)}
    return old | {*recorded} | ({"started.once"} if has_begun(status) else set())


def _is_new(fact: Fact, recorded: Collection[str], now: datetime) -> bool:
    """Whether a fact is so new that its event would still exist if it had been recorded."""
    if fact.key in recorded:
        return False
    since = fact.at or fact.not_before
    if since is not None and now - since < REMEMBERED:
        return True
    # An earlier event of the same series or order still exists, so the event of this fact would too.
    return any(key.startswith(f"{fact.series}.") or fact.follows(key) for key in recorded)


def is_old(status: JobStatus, now: datetime) -> bool:
    """Whether everything that can happen to a job was recorded long ago."""
    return status.completion_time is not None and now - status.completion_time > REMEMBERED


def keys(raw: Json, recorded: Iterable[Json]) -> set[str]:
    """The keys of a job's events."""
    stem = _name(raw, "")
    found = (event["metadata"]["name"] for event in recorded)
    return {name.removeprefix(stem) for name in found if name.startswith(stem)}


def event(raw: Json, fact: Fact, now: datetime) -> Json:
    """The Kubernetes Event that records a fact about a job."""
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
