"""What holds for every test."""

from __future__ import annotations

import os
from pathlib import PurePath

import pytest
from hypothesis import HealthCheck, settings

# Torch asks the DNS who is at the other end of each connection. An answer that was lost costs 5 s otherwise.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:2")


# How long an example takes says how busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


CLUSTER_FIXTURES = {"bench", "cluster"}
ORDER = ("tests/integration/trainer", "tests/integration", "tests/unit")
"""Where several processes share the tests: what takes longest begins first, many small files fill the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under pytest-xdist one process has all tests on the cluster; the others take the rest file by file."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=place)


def group(item: pytest.Item) -> str:
    """Tests of one group run in one process, one after another."""
    return "cluster" if on_cluster(item) else file(item)


def on_cluster(item: pytest.Item) -> bool:
    """Whether a test uses a cluster. Some look at everything on it, so no two may run at once."""
    used = set(getattr(item, "fixturenames", ()))
    return bool(CLUSTER_FIXTURES & used) or below(item, "tests/integration/cluster")


def place(item: pytest.Item) -> tuple[bool, bool, int]:
    """Tests on the cluster come first, of these the end-to-end tests last, for they install Headway on it."""
    rank = next((n for n, folder in enumerate(ORDER) if below(item, folder)), len(ORDER))
    return not on_cluster(item), below(item, "tests/e2e"), rank


def below(item: pytest.Item, folder: str) -> bool:
    """Whether a test lies in a folder of the repository."""
    return PurePath(file(item)).is_relative_to(folder)


def file(item: pytest.Item) -> str:
    """The test's file, as a path from the repository's root."""
    return item.nodeid.partition("::")[0]
