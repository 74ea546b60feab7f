"""One line of JSON an event, on standard output."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime


def log(event: str, **fields: object) -> None:
    """Write `event` with its fields; `rank` is added where there are several."""
    line: dict[str, object] = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
    if os.environ.get("WORLD_SIZE", "1") != "1":
        line["rank"] = int(os.environ["RANK"])
    print(json.dumps(line | fields, default=str), file=sys.stdout, flush=True)
