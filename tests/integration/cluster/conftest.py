"""Tests of the cluster that hack/cluster runs as processes of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "cluster"))

from headway_cluster.host import docker_answers


@pytest.fixture(scope="session", autouse=True)
def own_cluster() -> None:
    """Skip all of them if the cluster is one of kind, which these tests are not about."""
    if docker_answers():
        pytest.skip(
            "a Docker engine answers, so hack/cluster drives kind; these tests are of its own cluster"
        )
