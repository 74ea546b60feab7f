"""Data with which somebody who may write the bucket replaces a checkpoint's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any


class Planted:
    """An object that calls a function when it is unpickled."""

    def __init__(self, call: Callable[..., object], *arguments: str) -> None:
        self._call, self._arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call, self._arguments


def rewritten(record: bytes, name: str, data: bytes) -> bytes:
    """Return `record` with the size and digest of `data` for the file `name`.

    An attacker who knows the format could write this.
    """
    content = json.loads(record)
    files = content["files"] if "files" in content else content["state"]["files"]
    for file in files:
        if file["name"] == name:
            file |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return json.dumps(content).encode()
