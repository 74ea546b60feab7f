"""What of a spec may hold a secret: nobody who reads a run sees it, be it in MLflow or in the store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

WITHHELD: Final = frozenset({"podTemplate", "config", "tracking", "suspend"})
"""Fields that may hold a secret, or say nothing of the run."""
_PASSWORD: Final = re.compile(r"//[^/@\s]*@")
_QUERY: Final = re.compile(r"(https?://[^\s?]*)\?\S*")


def without_secret(text: str) -> str:
    """Text whose addresses have lost the user, the password and the query that they may hold."""
    return _QUERY.sub(r"\1", _PASSWORD.sub("//", text))


def public(value: Any) -> Any:
    """A spec, or a part of one, as anybody may read it."""
    if isinstance(value, Mapping):
        return {name: public(item) for name, item in value.items() if name not in WITHHELD}
    if isinstance(value, list):
        return [public(item) for item in value]
    return without_secret(value) if isinstance(value, str) else value
