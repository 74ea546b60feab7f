"""What the pods of one learner let one another know when one of them is told to stop.

The ranks of a pod that goes are missed by all others, which fail in a collective: to them a drained node is
like a crash. But a disruption is no failure of the learner. So a pod leaves a note as soon as SIGTERM comes,
and one whose ranks have failed without a reason of their own looks for it before it takes that for a failure.

The note lies where the pods meet, in a store that the first pod holds. For the others, that the first pod is
gone is as good as a note: its own end says whether that was a failure. The first pod itself needs a note. So
of each failure that no pod was told of, at least the first pod's end or that of the pod at fault is counted,
and what fails for ever comes to an end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from headway_trainer.logs import log

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

NOTE: Final = "headway/stopping"
CONNECT_SECONDS: Final = 12.0
"""Longest that the first pod is tried. Torch asks the DNS twice a connection, and a lost answer is 5 s."""
LOOK_SECONDS: Final = 5.0
"""Longest that a note may be behind the failure: a pod that goes hears of it no later than its ranks do. The
first pod looks for twice as long, as the store goes with it: others would take its end for a note."""


class PeerShutdown:
    """The pods of a learner, as one of them sees them."""

    def __init__(self, node_rank: int, master: str, port: int) -> None:
        """`master` and `port` are where the pods meet."""
        self._first = node_rank == 0
        self._master = master
        self._port = port
        self._held: Store | None = None
        self._meeting = False

    def meet(self) -> None:
        """The pods meet from now on; the first one holds the place of the notes until its process ends."""
        if self._first:
            # Torch's agent asks for a store at the same port later, and is given a share of this one.
            self._held = _store("127.0.0.1", self._port, is_master=True, multi_tenant=True)
        self._meeting = True

    def stopping(self) -> None:
        """This pod was told to stop: leave a note for the others."""
        if not self._meeting:
            return
        from torch.distributed import DistError

        try:
            self._notes().set(NOTE, "1")
        except DistError as error:
            log("nobody to tell of the end", why=str(error).partition("\n")[0])

    def stopped(self) -> bool:
        """Whether what this pod's ranks failed of is that another pod goes, and no failure of the learner as
        far as this pod can say."""
        from torch.distributed import DistNetworkError, DistStoreError

        try:
            self._notes().wait([NOTE], timedelta(seconds=LOOK_SECONDS * (2 if self._first else 1)))
        except DistNetworkError:
            return not self._first
        except DistStoreError:
            return False
        return True

    def _notes(self) -> Store:
        if self._held is None:
            patience = timedelta(seconds=CONNECT_SECONDS)
            self._held = _store(self._master, self._port, is_master=False, timeout=patience)
        return self._held


def _store(host: str, port: int, **options: Any) -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store: Store = TCPStore(host, port, wait_for_workers=False, **options)
    return store
