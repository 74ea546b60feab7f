"""Decisions in the artifact store: durable before anybody acts on them, and never changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from headway_api.artifacts import REMEDIES, Layout, written
from headway_api.decisions import Decision, Kept, RefusedOrder
from headway_api.record import Record
from headway_api.store import Store
from headway_api.stored import read

T = TypeVar("T", bound=Record)


@dataclass
class Known:
    """The recorded decisions."""

    decisions: dict[int, Decision] = field(default_factory=dict)
    """Decisions by number."""
    kept: dict[int, Kept] = field(default_factory=dict)
    refused: dict[str, RefusedOrder] = field(default_factory=dict)
    """Refused orders by their text."""

    def add(self, record: Decision | Kept | RefusedOrder) -> None:
        """Add a record."""
        if isinstance(record, Decision):
            self.decisions[record.number] = record
        elif isinstance(record, Kept):
            self.kept[record.number] = record
        else:
            self.refused[record.order] = record


class Journal:
    """The journal of one job. Blocking calls: run them in a thread."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout

    def read(self) -> Known:
        """Read all records."""
        known, folder = Known(), self._layout.remedies
        for uri in written(self._store.list(folder), folder, REMEDIES):
            kind: type[Decision | Kept | RefusedOrder] = Decision
            if "/orders/" in uri.removeprefix(folder):
                kind = RefusedOrder
            elif uri.endswith("-kept.json"):
                kind = Kept
            known.add(read(self._store, uri, kind))
        return known

    def write(self, record: Decision | Kept | RefusedOrder) -> Decision | Kept | RefusedOrder:
        """Make a record durable. Returns the stored record, which may be an earlier one of the same name."""
        if isinstance(record, Decision):
            return self._write(self._layout.remedy(record.number), record)
        if isinstance(record, Kept):
            return self._write(self._layout.remedy_kept(record.number), record)
        return self._write(self._layout.refused_order(record.order), record)

    def _write(self, uri: str, record: T) -> T:
        if self._store.put_new(uri, record.model_dump_json().encode()):
            return record
        return read(self._store, uri, type(record))
