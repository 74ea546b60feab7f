"""Reads YAML as kubectl does, so that a job's file means the same here as on a cluster. Pure.

PyYAML follows YAML 1.1: it reads `1e-4` as text, `12:30` as a number and `2026-11-03` as a date. kubectl
reads a number and two texts. A key that is written twice is refused, because all but the last value would
be lost.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"[-+]?((\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
)


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with kubectl's numbers."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if isinstance(key, yaml.ScalarNode) and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is written twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


_OTHER = {f"{_TAG}{kind}" for kind in ("int", "float", "timestamp")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in _OTHER]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


def documents(text: str) -> list[Any]:
    """The documents of a file.

    Raises:
        yaml.YAMLError: the text is not YAML, or a key is written twice.
        RecursionError: it is nested too deeply.
    """
    return list(yaml.load_all(text, _Loader))


def value(text: str) -> Any:
    """The only document of a text.

    Raises:
        yaml.YAMLError, RecursionError: as in `documents`.
    """
    return yaml.load(text, _Loader)
