"""A learner of two nodes loses one: which pod's end counts as a failure, and what is saved.

The launchers, torch's agents and ranks that wait for one another over gloo are real. The last test has real
learners.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import learner_rig as rig
import psutil
import pytest

from headway_api.config import JobConfig
from headway_api.exits import RESTART
from headway_trainer.peer_shutdown import NOTE

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(180)]

RANK = """
from headway_trainer import ranks, termination
termination.exit_on_sigterm()
here = ranks.Ranks.join()
print("joined", flush=True)
while True:
    here.barrier()
"""
LAUNCH = f"""
from headway_trainer import launch
launch.RANK = ("-c", {RANK!r})
launch.main()
"""


Pods = list[subprocess.Popen[str]]


@contextmanager
def launchers(nodes: int, port: int) -> Iterator[Pods]:
    """Start the launchers of the first two of so many nodes."""
    made = []
    for node in range(2):
        place = {"NNODES": str(nodes), "NODE_RANK": str(node)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        made.append(
            subprocess.Popen(
                [sys.executable, "-c", LAUNCH],
                env={**os.environ, **place, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    try:
        yield made
    finally:
        for pod in made:
            _lost(pod)


@pytest.fixture
def pods() -> Iterator[Pods]:
    """The launchers of two nodes, whose ranks have connected."""
    with launchers(2, rig.free_port()) as made:
        for pod in made:
            assert pod.stdout is not None
            assert pod.stdout.readline() == "joined\n"
        yield made


def _lost(pod: subprocess.Popen[str]) -> None:
    """Kill all processes of a pod at once, as the loss of its node or an OOM kill would."""
    below = psutil.Process(pod.pid).children(recursive=True) if pod.poll() is None else []
    pod.kill()
    for process in below:
        process.kill()
    pod.wait()


@pytest.mark.parametrize("goes", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_drained_node_does_not_fail_the_other(pods: Pods, goes: int) -> None:
    """The drained node's pod is a disruption. The other pod's end is not counted."""
    pods[goes].send_signal(signal.SIGTERM)
    assert pods[goes].wait(30) == 128 + signal.SIGTERM
    assert pods[1 - goes].wait(60) == RESTART


@pytest.mark.parametrize(("goes", "other"), [pytest.param(0, RESTART, marks=pytest.mark.long), (1, 1)])
def test_a_pod_lost_without_notice_counts_once(pods: Pods, goes: int, other: int) -> None:
    """Kubernetes decides whether the lost pod's end counts.

    If the pod of the first node is lost, the others end uncounted. If another pod is lost, the first node's
    end counts.
    """
    _lost(pods[goes])
    assert pods[1 - goes].wait(60) == other


def test_a_rank_that_crashes_is_a_failure(pods: Pods) -> None:
    (rank,) = psutil.Process(pods[1].pid).children()
    rank.kill()
    assert pods[1].wait(60) == 128 + signal.SIGKILL
    assert pods[0].wait(60) == 1


@pytest.mark.parametrize("node", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_a_node_that_finds_no_other_node_restarts_uncounted(node: str) -> None:
    """The job decides how long to wait, because the other node may have to wait for a machine."""
    place = {
        "NNODES": "2",
        "NODE_RANK": node,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(rig.free_port()),
    }
    hasty = LAUNCH.replace("launch.main()", "launch.RENDEZVOUS_SECONDS = 2\nlaunch.main()")
    ended = subprocess.run(
        [sys.executable, "-c", hasty],
        env={**os.environ, **place},
        stdout=subprocess.PIPE,
        text=True,
        timeout=90,
    )
    assert ended.returncode == RESTART
    assert "the pods have not connected" in ended.stdout


def test_a_pod_that_ends_before_all_connect_leaves_no_note() -> None:
    """Pods that connect later would find the note at their first failure, and not count that failure."""
    from torch.distributed import TCPStore

    port = rig.free_port()
    with launchers(3, port) as (_, goes):
        while not _connected(goes, port):
            assert goes.poll() is None
            time.sleep(0.05)
        goes.send_signal(signal.SIGTERM)
        assert goes.wait(60) == 128 + signal.SIGTERM
        notes = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        assert not notes.check([NOTE])
        del notes


def _connected(pod: subprocess.Popen[str], port: int) -> bool:
    """Whether a pod is connected to the address where the pods meet."""
    found = psutil.Process(pod.pid).net_connections(kind="tcp")
    return any(
        one.raddr and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED for one in found
    )


@asynccontextmanager
async def two_nodes(config: JobConfig, folder: Path, url: str) -> AsyncIterator[list[rig.LearnerProcess]]:
    """A running learner of two nodes."""
    port = str(rig.free_port())
    async with AsyncExitStack() as stack:
        made = []
        for node in ("0", "1"):
            place = {"NNODES": "2", "NODE_RANK": node, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            made.append(await stack.enter_async_context(rig.learner(config, folder / node, url, place)))
        yield made


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("drained", [0, 1])
async def test_when_a_node_is_drained_the_learner_saves_and_goes_on(
    tmp_path: Path, model: Path, left: Callable[..., Any], drained: int
) -> None:
    config = rig.job(tmp_path, model, lora={"rank": 4, "alpha": 8}, checkpoints={"everySteps": 100})
    served = rig.ScriptedCoordinator([rig.batch(step, groups=3) for step in range(1, 6)])
    async with served.serving() as url:
        async with two_nodes(config, tmp_path, url) as nodes:
            await rig.reached(served, 2)
            nodes[drained].kill(signal.SIGTERM)
            logs = [node.log.read_text()[-4000:] for node in nodes]
            assert await nodes[drained].exit() == 128 + signal.SIGTERM, logs
            assert await nodes[1 - drained].exit() == RESTART, logs
        assert left(config).latest >= 2, "nothing but step 0 was due"
        async with two_nodes(config, tmp_path, url) as nodes:
            for node in nodes:
                assert await node.exit(300) == 0, node.log.read_text()[-4000:]
    assert {report.version.incarnation for report in served.reports} == {0}, "no step was taken twice"
