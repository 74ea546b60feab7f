"""Logs each event as one line of JSON on standard output."""

from __future__ import annotations

import os
import sys

from headway_api import logs


def log(event: str, **fields: object) -> None:
    """Write `event` with its fields, and with `rank` if there are several ranks.

    It prints instead of using `logging`, because DeepSpeed and torch change the configuration of `logging`.
    """
    of_rank: dict[str, object] = {}
    if os.environ.get("WORLD_SIZE", "1") != "1":
        of_rank["rank"] = int(os.environ["RANK"])
    print(logs.line(event, of_rank | fields), file=sys.stdout, flush=True)
