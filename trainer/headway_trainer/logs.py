"""One line of JSON an event, on standard output."""

from __future__ import annotations

import os
import sys

from headway_api import logs


def log(event: str, **fields: object) -> None:
    """Write `event` with its fields, and `rank` if there are several.

    It prints instead of logging: DeepSpeed and torch configure `logging` as they like.
    """
    of_rank: dict[str, object] = {}
    if os.environ.get("WORLD_SIZE", "1") != "1":
        of_rank["rank"] = int(os.environ["RANK"])
    print(logs.line(event, of_rank | fields), file=sys.stdout, flush=True)
