"""How the pods of one learner learn that one of them must stop.

When a pod goes, the ranks of all others fail in a collective. To them a drained node looks like a crash, but
a disruption is not a failure of the learner. So a pod leaves a note as soon as it gets SIGTERM. A pod whose
ranks failed without a reason of their own looks for that note first.

The note lies in a store that the first pod holds, where the pods meet. If the first pod is gone, the others
treat that like a note: the first pod's own exit says whether it failed. The first pod itself needs a note. So
a failure without a note counts at least once, at the first pod's exit or at the faulty pod's. A permanent
failure therefore ends the job.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from headway_trainer.logs import log

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

NOTE: Final = "headway/stopping"
CONNECT_SECONDS: Final = 12.0
"""Longest time to connect to the first pod. Torch asks the DNS twice a connection; a lost answer costs 5 s.
"""
LOOK_SECONDS: Final = 5.0
"""Longest delay of a note after the failure: a pod that goes gets SIGTERM no later than its ranks do. The
first pod looks twice as long. It holds the store, and the others would read its exit as a note."""


class PeerShutdown:
    """One pod's view of the other pods of its learner."""

    def __init__(self, node_rank: int, master: str, port: int) -> None:
        """`master` and `port` say where the pods meet."""
        self._first = node_rank == 0
        self._master = master
        self._port = port
        self._open_store: Store | None = None
        self._meeting = False

    def meet(self) -> None:
        """Begin to meet. The first pod holds the store of the notes until its process ends."""
        if self._first:
            # Torch's agent later opens a store at the same port, and shares this one.
            self._open_store = _store("127.0.0.1", self._port, is_master=True, multi_tenant=True)
        self._meeting = True

    def stopping(self) -> None:
        """Leave a note for the others: this pod was asked to stop."""
        if not self._meeting:
            return
        from torch.distributed import DistError

        try:
            self._notes().set(NOTE, "1")
        except DistError as error:
            log("no other pod can be notified of the end", why=str(error).partition("\n")[0])

    def stopped(self) -> bool:
        """Whether this pod's ranks failed because another pod goes, as far as this pod can say. If so, the
        learner itself did not fail."""
        from torch.distributed import DistNetworkError, DistStoreError

        try:
            self._notes().wait([NOTE], timedelta(seconds=LOOK_SECONDS * (2 if self._first else 1)))
        except DistNetworkError:
            return not self._first
        except DistStoreError:
            return False
        return True

    def _notes(self) -> Store:
        if self._open_store is None:
            patience = timedelta(seconds=CONNECT_SECONDS)
            self._open_store = _store(self._master, self._port, is_master=False, timeout=patience)
        return self._open_store


def _store(host: str, port: int, **options: Any) -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store: Store = TCPStore(host, port, wait_for_workers=False, **options)
    return store
