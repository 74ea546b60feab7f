"""Usage events as CloudEvents 1.0, in JSON, one a line.

`source` and `id` together are unique, and an event that is exported again has the same ones. A receiver that
remembers them counts no event twice. `source` names the job by uid, because another job may later have the
same name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any, Final

from headway_api import names
from headway_api.config import Identity
from headway_api.records import UsageEvent

TYPE: Final = "dev.headway.usage.v1"


def source(job: Identity) -> str:
    """The sender of the event, as a URI reference."""
    plural = names.PLURALS[job.kind]
    return f"/apis/{names.API_VERSION}/namespaces/{job.namespace}/{plural}/{job.name}/{job.uid}"


def event(job: Identity, used: UsageEvent) -> dict[str, Any]:
    """One usage event in the form of a CloudEvent."""
    data = {
        "class": used.usage_class.value,
        "quantity": used.quantity,
        "role": used.role,
        "product": used.product,
        "model": used.model,
        "labels": dict(job.labels) if job.labels else None,
    }
    return {
        "specversion": "1.0",
        "type": TYPE,
        "source": source(job),
        "id": used.id,
        "time": datetime.fromtimestamp(used.at, UTC).isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": {name: value for name, value in data.items() if value is not None},
    }


def lines(job: Identity, used: Iterable[UsageEvent]) -> bytes:
    """A file of events, ordered by time and id."""
    ordered = sorted(used, key=lambda each: (each.at, each.id))
    return "".join(f"{json.dumps(event(job, each))}\n" for each in ordered).encode()


def by_day(used: Iterable[UsageEvent]) -> Mapping[date, list[UsageEvent]]:
    """Events by the UTC day that decides their price."""
    found: dict[date, list[UsageEvent]] = {}
    for each in used:
        found.setdefault(datetime.fromtimestamp(each.at, UTC).date(), []).append(each)
    return found
