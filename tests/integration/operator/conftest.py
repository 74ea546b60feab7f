"""An operator for each test, in a namespace of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_rig import Cluster, Rig


@pytest.fixture(scope="module")
def house(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A prepared namespace, in which no operator runs yet."""
    folder: Path = tmp_path_factory.mktemp("operator")
    rig = Rig(cluster, f"operator-{uuid.uuid4().hex[:6]}", folder)
    try:
        rig.prepare()
        yield rig
    finally:
        rig.remove()


@pytest.fixture
def rig(house: Rig) -> Iterator[Rig]:
    """The prepared namespace, empty before and after each test."""
    house.scripts, house.settings = {}, {}
    yield house
    house.clean()
