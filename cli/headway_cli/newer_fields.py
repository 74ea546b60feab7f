"""Finds fields that this command knows and the cluster's older Headway does not. Pure."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from headway_api import crd

UNKNOWN: Final = re.compile(
    r"""unknown\ field\ "([^"]+)"  # of a create or an update
    | \.((?:spec|metadata|status)\b\S*):\ field\ not\ declared\ in\ schema  # of an apply""",
    re.VERBOSE,
)
INDEX: Final = re.compile(r"\[[^\]]*\]")


def unknown(message: str) -> list[str]:
    """The fields that an API server does not know according to its message, such as spec.algorithm.loss."""
    return [decoded or applied for decoded, applied in UNKNOWN.findall(message)]


def newer(kind: str, message: str) -> list[str]:
    """The unknown fields in `message` that this command's version of the kind has."""
    return [field for field in unknown(message) if _has(_schema(kind), field)]


@cache
def _schema(kind: str) -> dict[str, Any]:
    found = next(each for each in crd.definitions() if each["spec"]["names"]["kind"] == kind)
    schema: dict[str, Any] = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _has(schema: dict[str, Any], field: str) -> bool:
    """Whether a schema has a field. Elements of a list are written [0] or [name="a"]."""
    node: dict[str, Any] | None = schema
    for step in INDEX.sub("", field).split("."):
        node = node.get("items", node) if node is not None else None
        properties = (node or {}).get("properties", {})
        node = properties.get(step)
        if node is None:
            return False
    return True
