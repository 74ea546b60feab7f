"""Makes the changes that a reader makes to the project's files. Pure functions of texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final

import yaml

UPLOADED: Final = "write in the job's spec:"
"""The line that `headway data push` prints above the fields for the job's spec."""
FROM_UPLOAD: Final = ("data", "model")
"""Printed fields that the reader writes into the job. The printed endpoint works only on this machine, not in
pods.
"""
Json = dict[str, Any]


class LinesNotFoundError(Exception):
    """The project lacks the lines to change, or the commands have not printed the needed fields."""


def changed(source: str, block: str) -> str:
    """The environment's source after a change on the page: an assignment, or the `return` of `score`.

    Raises:
        LinesNotFoundError: the module has no such assignment or method.
    """
    line = block.rstrip("\n")
    if named := re.match(r"([A-Z_]+) = ", line):
        pattern = rf"^{named[1]} = .*$"
        if not re.search(pattern, source, re.MULTILINE):
            raise LinesNotFoundError(f"the environment has no line {named[1]} = ...")
        return re.sub(pattern, lambda _: line, source, count=1, flags=re.MULTILINE)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == "score":
            last = node.body[-1]
            lines = source.splitlines()
            lines[last.lineno - 1 : last.end_lineno] = [line]
            return "\n".join(lines) + "\n"
    raise LinesNotFoundError("the environment has no method score")


def filled(job: str, block: str, printed: str) -> str:
    """The job with the fields of a block, and with the fields that `headway data push` has printed before.

    Raises:
        LinesNotFoundError: no command has printed such fields.
    """
    _, found, after = printed.rpartition(UPLOADED)
    if not found:
        raise LinesNotFoundError("no command has printed what to write in the job's spec")
    fields = yaml.safe_load("\n".join(takewhile(lambda line: line.startswith("  "), after.splitlines()[1:])))
    document = yaml.safe_load(job)
    for part in (yaml.safe_load(block), {name: fields[name] for name in FROM_UPLOAD}):
        document["spec"] = merged(document["spec"], part)
    return yaml.safe_dump(document, sort_keys=False)


def merged(base: Mapping[str, Any], part: Mapping[str, Any]) -> Json:
    """`base` with the fields of `part` merged into it."""
    result = dict(base)
    for name, value in part.items():
        old = result.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[name] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result
