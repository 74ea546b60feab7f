"""Pods of one learner find out whether a rank failed only because another pod was asked to stop."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import learner_rig as rig
import pytest
from torch.distributed import TCPStore

from headway_trainer import peer_shutdown as module
from headway_trainer.peer_shutdown import PeerShutdown


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 2.0)


@pytest.fixture
def pod() -> Callable[[int], PeerShutdown]:
    port = rig.free_port()
    return lambda node_rank: PeerShutdown(node_rank, "127.0.0.1", port)


def met(*pods: PeerShutdown) -> tuple[PeerShutdown, ...]:
    for one in pods:
        one.meet()
    return pods


@pytest.mark.parametrize("goes", [0, 1, 2])
def test_all_pods_learn_that_one_has_to_stop(pod: Callable[[int], PeerShutdown], goes: int) -> None:
    pods = met(pod(0), pod(1), pod(2))
    pods[goes].stopping()
    assert [one.stopped() for one in pods] == [True] * 3


def test_a_failure_without_a_stop_signal_counts_as_a_failure(pod: Callable[[int], PeerShutdown]) -> None:
    assert [one.stopped() for one in met(pod(0), pod(1))] == [False] * 2


@pytest.mark.parametrize("late", [False, True], ids=["before it looks", "while it looks"])
def test_other_pods_count_the_first_pods_loss_as_a_stop(
    pod: Callable[[int], PeerShutdown], late: bool
) -> None:
    """Its own exit decides, because the others cannot know whether it was drained, crashed or ran out of
    memory."""
    first, other = met(pod(0), pod(1))
    if late:
        other._notes()
    first._open_store = None
    assert other.stopped()


def test_the_first_pod_accepts_only_a_note_as_a_stop(
    pod: Callable[[int], PeerShutdown], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two pods that lose their connection would restart without end, and count no failure."""
    first, other = met(pod(0), pod(1))
    other._open_store = None
    assert not first.stopped()
    first._open_store, first._port = None, rig.free_port()
    assert not first.stopped(), "whatever has become of the place"


def test_a_pod_stopped_before_the_pods_meet_notifies_none(pod: Callable[[int], PeerShutdown]) -> None:
    pod(1).stopping()
    (other,) = met(pod(1))
    other.stopping()
    assert other._open_store is None


def test_torchs_agent_shares_the_first_pods_store(pod: Callable[[int], PeerShutdown]) -> None:
    """torch's elastic agent opens a store at the same port as the first pod's."""
    (first,) = met(pod(0))
    port = first._port
    agents = TCPStore("127.0.0.1", port, 2, True, wait_for_workers=False, multi_tenant=True)
    first.stopping()
    # The note may arrive after `stopping` returns, because nobody acknowledges it.
    agents.wait([module.NOTE], timedelta(seconds=10))
