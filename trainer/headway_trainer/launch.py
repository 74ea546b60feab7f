"""Starts this node's learner processes: `python -m headway_trainer.launch`.

It reads NNODES, NODE_RANK (or the index of an indexed Job), NPROC, MASTER_ADDR and MASTER_PORT from the
environment. Without them it starts a single process. GRACE_SECONDS is the time from SIGTERM to SIGKILL. If
the learner has only one process in all, this process becomes it. Otherwise torch's elastic agent starts NPROC
processes here. The agent restarts none of them: the operator restarts pods.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from headway_api import names
from headway_api.exits import PERMANENT, RESTART, RETRIABLE
from headway_trainer.logs import log
from headway_trainer.peer_shutdown import PeerShutdown
from headway_trainer.termination import another_handles_sigterm, exit_on_sigterm, live

LOOPBACK: Final = "127.0.0.1"
RENDEZVOUS_SECONDS: Final = 900
"""Maximum seconds that a pod waits for the other pods before it restarts. These restarts are not counted as
failures; the job's `pendingDeadlineSeconds` bounds them."""
LAST_SECONDS: Final = 10
"""Seconds at the end of the grace period that are left to kill processes that have not ended by
themselves."""
RANK: Final = ("-u", "-m", "headway_trainer.learner")
"""Python arguments that start a rank of the learner."""


@dataclass(frozen=True)
class NodePlace:
    """The position of this pod among the learner's pods."""

    nodes: int
    node_rank: int
    processes: int
    """Number of processes in this pod."""
    master: str
    port: int
    grace: int
    """Seconds that the pod has after SIGTERM."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> NodePlace:
        """Read the position from the environment. A single pod's processes meet on the loopback interface."""
        nodes = int(environ.get("NNODES", "1"))
        return cls(
            nodes=nodes,
            node_rank=int(environ.get("NODE_RANK", environ.get("JOB_COMPLETION_INDEX", "0"))),
            processes=int(environ.get("NPROC", "1")),
            master=environ.get("MASTER_ADDR", LOOPBACK) if nodes > 1 else LOOPBACK,
            port=int(environ.get("MASTER_PORT", str(names.PORT_TORCH))),
            grace=int(environ.get("GRACE_SECONDS", "300")),
        )

    @property
    def alone(self) -> bool:
        """Whether there is only one process in all."""
        return self.nodes * self.processes == 1


def main() -> None:
    """Become the learner, or start several and exit with the code of the rank that explained its failure."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    place = NodePlace.of(os.environ)
    if place.alone:
        _alone(place, os.environ)
    else:
        peers = PeerShutdown(place.node_rank, place.master, place.port) if place.nodes > 1 else None

        def answered() -> bool:
            """Whether torch's agent handles the signal, which it does once processes run.

            Before that, no other pod waits for this one, so it leaves no note. Pods that connect later
            without it would find the note and stop.
            """
            if not another_handles_sigterm():
                return False
            if peers:
                peers.stopping()
            return True

        exit_on_sigterm(answered)
        live(partial(several, place, peers))


def _alone(place: NodePlace, environ: MutableMapping[str, str]) -> None:
    tell_alone(place, environ)
    # Set the handler before the imports, which take seconds. A pod that is deleted while it starts must not
    # use up its grace period.
    exit_on_sigterm()
    from headway_trainer import learner

    learner.main()


def tell_alone(place: NodePlace, environ: MutableMapping[str, str]) -> None:
    """Set the environment variables of the only rank."""
    environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    environ.update(MASTER_ADDR=place.master, MASTER_PORT=str(place.port))


def outcome(first: int, codes: Collection[int], stopped: Callable[[], bool]) -> int:
    """Exit code of a pod whose processes failed with `codes`; `first` is the first code seen.

    The code of a process that explained its failure (42, 43, 44) decides for all. When such a process ends,
    the others fail in a collective, and their codes may be seen first. If no process explained its failure,
    `stopped` says whether another pod had to stop. A negative signal number becomes 128 plus the signal, as
    in a shell.
    """
    if explained := next((code for code in (PERMANENT, RETRIABLE, RESTART) if code in codes), None):
        return explained
    if stopped():
        return RESTART
    return first if first > 0 else 128 - first


def several(place: NodePlace, peers: PeerShutdown | None, rank: Sequence[str] = ()) -> int:
    """Start this node's processes, wait for them, and return the exit code.

    Args:
        peers: the other nodes, if there are any.
        rank: Python arguments that start a rank; if empty, `RANK`.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=place.nodes,
        max_nodes=place.nodes,
        nproc_per_node=place.processes,
        # The same ID in every pod: by default each agent makes up its own, and the pods never connect.
        run_id="learner",
        rdzv_backend="static",
        rdzv_endpoint=f"{place.master}:{place.port}",
        rdzv_configs={"rank": place.node_rank, "timeout": RENDEZVOUS_SECONDS},
        max_restarts=0,
        monitor_interval=0.5,
        shutdown_timeout=max(1, place.grace - LAST_SECONDS),
    )
    if peers:
        peers.meet()
    try:
        elastic_launch(config, sys.executable)(*(rank or RANK))
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        codes = [other.exitcode for other in failed.failures.values()]
        return outcome(first.exitcode, codes, peers.stopped if peers else lambda: False)
    except SignalException as stopped:
        return 128 + stopped.sigval
    except DistError as apart:
        log("the pods have not connected", why=str(apart).partition("\n")[0])
        return RESTART
    return 0


if __name__ == "__main__":
    main()
