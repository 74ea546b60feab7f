"""The current price book: a file that may change at any time, with every edition of it in the store.

Each edition prices all usage again, so a corrected price corrects the cost. Such a change is recorded before
it applies, so no bill changes without a record. If a book is deleted or becomes unreadable, the last edition
stays in force, and the reason is shown.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headway_analysis.billing.segments import Usages
from headway_api import logs, names
from headway_api.artifacts import NUMBERED, Layout, written
from headway_api.exits import JobError
from headway_api.price_editions import Edition
from headway_api.price_file import MAX_BYTES, PriceBookError, parse
from headway_api.prices import DEFAULT, EXACT, PriceBook, cost_by_day
from headway_api.store import Store
from headway_api.stored import read

FIELD: Final = "spec.priceBook"
LOOK_SECONDS: Final = 10.0
"""Seconds between two looks at the file. A kubelet updates a changed ConfigMap within a minute or two."""
TEXT_LIMIT: Final = 500
_log = logging.getLogger(__name__)


def edition(number: int, book: PriceBook, before: PriceBook | None, used: Usages, at: datetime) -> Edition:
    """The edition of `book`, with the old and the new cost of the usage so far (`used`) if they differ."""
    old, new = (None if known is None else cost_by_day(used, known) for known in (before, book))
    corrected = old is not None and old != new
    return Edition(
        number=number,
        at=at,
        digest=book.digest,
        book=book,
        before=f"{EXACT.normalize(old):f}" if corrected and old is not None else None,
        after=f"{EXACT.normalize(new):f}" if corrected and new is not None else None,
    )


class Books:
    """The price book of one job. Blocking calls: run them in a thread, one at a time."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        file: Path,
        name: str | None,
        model: str,
        without: PriceBook = DEFAULT,
    ) -> None:
        """Nothing is read yet.

        Args:
            file: where the job's ConfigMap is mounted; the file may be absent.
            name: the ConfigMap in `spec.priceBook`; None if it names none.
            model: the job's base model, whose own prices apply; empty if there are several.
            without: the book if there is no such ConfigMap.
        """
        self._store, self._layout = store, layout
        self._file, self._name, self._model = file, name, model
        self._seen: bytes | None = None
        """The file's content at the last look."""
        self.whole = without
        """The current book as it was written, with the prices of all models."""
        self.now = without.of(model)
        """The current book's prices for the job's model."""
        self.editions: list[Edition] = []
        """All editions, in order."""
        self.problem: str | None = None
        """Why a newer file is not in force."""

    @property
    def corrections(self) -> list[Edition]:
        """The editions that changed the price of earlier usage."""
        return [each for each in self.editions if each.before is not None]

    def first(self) -> PriceBook:
        """The book with which the job begins or goes on.

        Raises:
            JobError: `PriceBookMissing` or `PriceBookInvalid`, if there is no earlier edition.
        """
        folder = self._layout.prices
        kept = written(self._store.list(folder), folder, NUMBERED)
        self.editions = [read(self._store, uri, Edition) for uri in kept]
        if self.editions:
            self._take(self.editions[-1].book)
        try:
            found = self._read()
        except PriceBookError as fault:
            if not self.editions:
                raise JobError("PriceBookInvalid", f"{self._where}: {fault}", field=FIELD) from fault
            found = None
            self._say(str(fault))
        if found is None and self._name is not None and not self.editions:
            what = f"there is no ConfigMap {self._name} with key {self._file.name} in the job's namespace"
            raise JobError("PriceBookMissing", f"{what}; create it, or remove {FIELD}", field=FIELD)
        if found is not None:
            self._take(found)
        return self.whole

    def begin(self, used: Usages) -> None:
        """Store the current edition, once the earlier usage is known."""
        if not self.editions or self.editions[-1].digest != self.whole.digest:
            self._keep(self.whole, self.editions[-1].book if self.editions else None, used)

    def look(self, used: Usages) -> bool:
        """Apply the file's current content. Returns whether anything changed, including the problem."""
        before = (self.whole, self.problem)
        try:
            found = self._read()
        except PriceBookError as fault:
            self._say(str(fault))
            return before != (self.whole, self.problem)
        if found is None:
            gone = self._seen is not None
            self._say("it is gone" if gone else None)
        else:
            self.problem = None
            if found != self.whole:
                self._keep(found, self.whole, used)
                self._take(found)
        return before != (self.whole, self.problem)

    def _read(self) -> PriceBook | None:
        """The file's content; None if there is no file."""
        try:
            with self._file.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        self._seen = text
        return parse(text)

    def _take(self, book: PriceBook) -> None:
        self.whole, self.now = book, book.of(self._model)

    def _keep(self, book: PriceBook, before: PriceBook | None, used: Usages) -> None:
        """Store an edition. A coordinator that still runs beside its successor may have stored it first."""
        old = None if before is None else before.of(self._model)
        number = len(self.editions) + 1
        made = edition(number, book.of(self._model), old, used, datetime.now(UTC))
        made = made.model_copy(update={"book": book, "digest": book.digest})
        uri = self._layout.price_edition(number)
        # Unset fields stay unset. Otherwise a model's default for `discarded` would override the entry's own.
        if not self._store.put_new(uri, made.model_dump_json(exclude_unset=True).encode()):
            made = read(self._store, uri, Edition)
        self.editions.append(made)
        changed = f"{made.before} -> {made.after} USD" if made.before is not None else "nothing"
        logs.event(_log, "prices", book=book.name, edition=number, digest=made.digest[:12], corrected=changed)

    @property
    def _where(self) -> str:
        return f"ConfigMap {self._name or names.PRICES_NAME}, key {self._file.name}"

    def _say(self, why: str | None) -> None:
        problem = None if why is None else f"{self._where}: {why}; the previous edition stays in force"
        if problem != self.problem and problem is not None:
            logs.event(_log, "prices-kept", level=logging.WARNING, problem=problem[:TEXT_LIMIT])
        self.problem = None if problem is None else problem[:TEXT_LIMIT]
