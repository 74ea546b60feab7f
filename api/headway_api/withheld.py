"""Removes the parts of a spec that may be secret, before readers of a run see it in MLflow or the store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

WITHHELD: Final = frozenset({"podTemplate", "config", "tracking", "suspend"})
"""Fields that may hold a secret, or that say nothing about the run."""
_PASSWORD: Final = re.compile(r"//[^/@\s]*@")
_QUERY: Final = re.compile(r"(https?://[^\s?]*)\?\S*")


def without_secret(text: str) -> str:
    """`text` without the user, password and query of the URLs in it."""
    return _QUERY.sub(r"\1", _PASSWORD.sub("//", text))


def public(value: Any) -> Any:
    """`value`, a spec or a part of one, without what may be secret."""
    if isinstance(value, Mapping):
        return {name: public(item) for name, item in value.items() if name not in WITHHELD}
    if isinstance(value, list):
        return [public(item) for item in value]
    return without_secret(value) if isinstance(value, str) else value
