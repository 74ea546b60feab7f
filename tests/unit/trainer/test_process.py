"""The learner process: its place among the pods, and how it answers probes."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from headway_trainer import probes as module
from headway_trainer.launch import NodePlace
from headway_trainer.probes import Probes


def status(probes: Probes, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{probes.port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_node_without_variables_is_alone() -> None:
    place = NodePlace.of({})
    assert place.alone
    assert (place.master, place.port) == ("127.0.0.1", 29500)


def test_several_pods_meet_where_the_operator_says() -> None:
    place = NodePlace.of(
        {"NNODES": "2", "NPROC": "4", "JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "job-learner-0"}
    )
    assert (place.nodes, place.node_rank, place.processes) == (2, 1, 4)
    assert place.master == "job-learner-0"
    assert not place.alone


def test_the_processes_of_one_pod_meet_on_the_loopback() -> None:
    place = NodePlace.of({"NPROC": "2", "MASTER_ADDR": "job-learner-0"})
    assert place.master == "127.0.0.1"
    assert not place.alone


def test_the_grace_period_is_read_from_the_environment() -> None:
    assert (NodePlace.of({}).grace, NodePlace.of({"GRACE_SECONDS": "1200"}).grace) == (300, 1200)


def test_the_ranks_own_index_wins_over_the_jobs() -> None:
    assert NodePlace.of({"NNODES": "3", "NODE_RANK": "2", "JOB_COMPLETION_INDEX": "0"}).node_rank == 2


def test_probes_distinguish_ready_from_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = Probes(0)
    try:
        assert status(probes, "/healthz") == 200
        assert status(probes, "/readyz") == 503
        probes.ready = True
        assert status(probes, "/readyz") == 200
        assert status(probes, "/elsewhere") == 404
        monkeypatch.setattr(module, "STALL", -1.0)
        assert status(probes, "/healthz") == 503
    finally:
        probes.close()
