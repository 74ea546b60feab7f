"""A module with environment classes that cannot be loaded or made."""

from __future__ import annotations

import os
import time

from bad import Bad

HOW = os.environ.get("HOW", "")
if HOW == "hangs":
    while True:
        time.sleep(0.01)
if HOW == "raises":
    raise RuntimeError("on purpose")
if HOW == "leaves":
    raise SystemExit(0)
if HOW == "ends the process":
    os._exit(0)
if HOW == "forks":
    os.fork()
if HOW == "prints":
    print("x" * 2**24)


class Refuses(Bad):
    """Refuses its configuration."""

    def __init__(self, config: object) -> None:
        raise ValueError("config: remove everything")
