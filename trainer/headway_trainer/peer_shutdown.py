"""Lets the pods of one learner know that one of them must stop.

When a pod stops, the ranks of all other pods fail in a collective. They cannot distinguish a drained node
from a crash, but a disruption is not a failure of the learner. So a pod leaves a note as soon as it gets
SIGTERM. If a pod's ranks fail without an explanation, the pod looks for such a note before it reports a
failure.

The note lies in a rendezvous store that the first pod serves. If that pod is gone, the other pods act as if
they had found a note: the first pod's own exit says whether it failed. The first pod itself needs a note. So
a failure without a note is counted at least once, at the exit of the first pod or of the faulty pod. A
lasting failure therefore ends the job.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from headway_trainer.logs import log

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

NOTE: Final = "headway/stopping"
CONNECT_SECONDS: Final = 12.0
"""Maximum seconds to connect to the first pod. Torch makes two DNS queries per connection, and each lost
answer costs 5 s."""
LOOK_SECONDS: Final = 5.0
"""Maximum seconds that a pod waits for a note after its ranks failed.

This is enough, because a stopping pod gets SIGTERM no later than its ranks do. The first pod waits twice as
long: it serves the store, and the other pods would treat its exit as a note.
"""


class PeerShutdown:
    """One pod's connection to the notes of its learner's pods."""

    def __init__(self, node_rank: int, master: str, port: int) -> None:
        """`master` and `port` are the address of the rendezvous store in the first pod."""
        self._first = node_rank == 0
        self._master = master
        self._port = port
        self._open_store: Store | None = None
        self._meeting = False

    def meet(self) -> None:
        """Enable notes from now on. The first pod serves their store until its process ends."""
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
        """Whether this pod's ranks failed because another pod must stop, as far as this pod can tell. If so,
        the learner itself did not fail."""
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
