"""Answers of judges by the digest of judge and question.

They are in memory and, for a successor, in the store.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from headway_api import logs
from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.record import Record
from headway_api.store import ObjectNotFoundError, Store, StoreDeniedError
from headway_api.store_unavailable import StoreUnavailableError
from headway_api.stored import read

MAX_IN_MEMORY: Final = 1024
"""The number of answers in memory. The largest have 256 KiB."""
STORE_SECONDS: Final = 5.0
"""The longest that a question waits for the store."""
ALONE_SECONDS: Final = 60.0

T = TypeVar("T")

_log = logging.getLogger(__name__)


class KeptAnswer(Record):
    """An answer as the store has it."""

    answer: Any


class Kept:
    """The stored answers of one job.

    If an answer cannot be stored or read, the judge is asked again, which only costs money.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._known: OrderedDict[str, KeptAnswer] = OrderedDict()
        self._left_alone_until = -math.inf

    async def answer(self, question: str) -> KeptAnswer | None:
        """An earlier answer; None if there is none."""
        if (known := self._known.get(question)) is not None:
            self._known.move_to_end(question)
            return known
        where = self._layout.judgement(question)
        found: KeptAnswer | None = await self._asked(partial(read, self._store, where, KeptAnswer))
        if found is not None:
            self._remember(question, found)
        return found

    async def keep(self, question: str, answer: Any) -> None:
        """Store an answer, for this process and its successors."""
        found = KeptAnswer(answer=answer)
        self._remember(question, found)
        where, data = self._layout.judgement(question), found.model_dump_json().encode()
        await self._asked(partial(self._store.put_new, where, data))

    async def _asked(self, call: Callable[[], T]) -> T | None:
        """The store's result; None if it does not answer soon.

        The store is then not asked for a while, so that a judge's answer does not wait for it.
        """
        if time.monotonic() < self._left_alone_until:
            return None
        try:
            async with asyncio.timeout(STORE_SECONDS):
                return await asyncio.to_thread(call)
        except ObjectNotFoundError:
            return None
        except JobError as error:  # the object is not an answer that this program stored
            logs.event(_log, "judgement-unreadable", level=logging.WARNING, error=str(error))
            return None
        except (StoreDeniedError, StoreUnavailableError, OSError) as error:  # TimeoutError is an OSError
            logs.event(_log, "judgements-not-kept", level=logging.WARNING, error=str(error))
            self._left_alone_until = time.monotonic() + ALONE_SECONDS
            return None

    def _remember(self, question: str, found: KeptAnswer) -> None:
        self._known[question] = found
        while len(self._known) > MAX_IN_MEMORY:
            self._known.popitem(last=False)
