"""Reads a price book as people write it: YAML text, within bounds.

Every value is kept as text, so that no price is rounded.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from pydantic import ValidationError

from headway_api import mistake_words
from headway_api.bounds import MIB
from headway_api.prices import PriceBook

MAX_BYTES: Final = MIB
"""Maximum bytes that a ConfigMap may hold."""
DEEPEST: Final = 8
MAX_FAULTS: Final = 4


class PriceBookError(ValueError):
    """The text is not a price book. The message names the entry and the field, and says what to write."""


class _Loader(yaml.BaseLoader):
    """A YAML loader that keeps every value as text, and refuses aliases: they could expand a kilobyte to
    gigabytes."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise PriceBookError(f"line {self.line + 1}: an alias (*name) is not accepted; write its value")
        self.depth += 1
        if self.depth > DEEPEST:
            raise PriceBookError(f"nested deeper than {DEEPEST} levels; a price book has five")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            line = node.start_mark.line + 1
            raise PriceBookError(f"line {line}: {twice!r} is written twice; remove one of them")
        return super().construct_mapping(node, deep=True)


def parse(text: bytes) -> PriceBook:
    """Parse the price book in a text.

    Raises:
        PriceBookError: the text is not a price book.
    """
    if len(text) > MAX_BYTES:
        raise PriceBookError(f"more than {MAX_BYTES} bytes")
    try:
        document = yaml.load(text.decode(), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise PriceBookError("not UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise PriceBookError(f"not YAML: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(document, dict):
        raise PriceBookError("must be an object with name and entries")
    try:
        return PriceBook.model_validate(document)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        sentences = "; ".join(_sentence(fault) for fault in faults[:MAX_FAULTS])
        more = len(faults) - MAX_FAULTS
        raise PriceBookError(sentences + (f"; and {more} more" if more > 0 else "")) from error


def _sentence(fault: Any) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).lstrip(".")
    given, kind = fault.get("input"), fault["type"]
    if kind == "extra_forbidden":
        return f"{where}: no such field; docs/prices.md lists the classes and fields"
    if fault["loc"] and fault["loc"][-1] == "[key]":
        return f"{where.removesuffix('.[key]')}: write a model's name, or its beginning with * at the end"
    if kind == "missing":
        return f"{where}: is missing"
    if kind == "string_pattern_mismatch" and (".prices." in where or ".models." in where):
        return f'{where}: {str(given)[:40]!r} is not a price; write US dollars of 0 or more, such as "0.13"'
    if kind.startswith("date"):
        return f"{where}: {str(given)[:40]!r} is not a day; write YYYY-MM-DD"
    message = mistake_words.message(fault)
    return f"{where}: {message}" if where else message
