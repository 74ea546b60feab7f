"""Settings and ordering for every test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# Torch makes a reverse DNS lookup for each connection. A lookup whose answer is lost would cost 5 s.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:2")
# The tests' models are tiny, and `make test` has more processes than cores. Several threads for one operation
# would spend their time waiting for each other. Set this before anything imports numpy or torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# The duration of an example depends on how busy the machine is, so it has no deadline.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


ON_CLUSTER = (
    "tests/integration/api",
    "tests/integration/cluster",
    "tests/integration/coordinator/test_status_apply.py",
    "tests/integration/operator",
    "tests/integration/sandbox/test_broker.py",
    "tests/e2e/test_isolation.py",
    "tests/e2e/test_evaluation.py",
    "tests/e2e/test_dashboards.py",
    "tests/e2e",
)
"""Tests on a cluster, in the order in which they run. No two may run at once, because some inspect everything
on the cluster. The end-to-end tests come last, because they install Headway on the cluster. The first of them
inspect a running job, and the next ones evaluate its checkpoints. Those after them check what Prometheus
scraped from both jobs."""
CLUSTER_FIXTURES = {"bench", "cluster"}
FIRST_BUILD_S = 2700
"""Seconds that the first test on a cluster may take: a fresh machine builds Kubernetes and images first."""
MEASURED = (
    "tests/unit/test_every_reader.py",
    "tests/unit/test_every_route.py",
    "tests/unit/coordinator/test_evil_answers.py",
    "tests/unit/coordinator/test_gateway_fuzz.py",
    "tests/unit/coordinator/test_gateway_hostile.py",
    "tests/unit/coordinator/test_large_requests.py",
    "tests/unit/rollout/test_evil_answers.py",
    "tests/unit/trainer/test_evil_answers.py",
)
"""Tests that measure peak memory. In an old process the heap is fragmented, and a small block costs a whole
page."""
LONGEST = (
    "tests/integration/trainer",
    "tests/integration/cli",
    "tests/integration/coordinator",
    "tests/integration/rollout",
    "tests/traps",
)
ORDER = (*ON_CLUSTER, *MEASURED, *LONGEST, "tests/unit", "tests")
"""Memory tests come first, because they need a young process. The slowest tests follow, and many small files
fill the end. Tests of the chart come last: on a fresh machine helm and promtool are built while the others
run."""


class Sharing(LoadScopeScheduling):  # type: ignore[misc]
    """Under pytest-xdist one process runs all tests on the cluster.

    The others share the rest, file by file.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "the cluster" if below(nodeid, *ON_CLUSTER) else file(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Sharing:
    """Use `Sharing`, whatever `--dist` says. `--no-loadscope-reorder` keeps `ORDER`."""
    return Sharing(config, log)


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection, which would take seconds to scan them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # after `-m` has removed tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests in `ORDER`, and give tests that start a platform a longer timeout.

    Raises:
        pytest.UsageError: a test uses the cluster or measures memory, and is not listed above.
    """
    for item in items:
        used = CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ()))
        if used and not below(item.nodeid, *ON_CLUSTER):
            raise pytest.UsageError(
                f"{file(item.nodeid)} uses the cluster: add it to ON_CLUSTER in tests/conftest.py"
            )
        if measures(item) and not below(item.nodeid, *MEASURED):
            raise pytest.UsageError(
                f"{file(item.nodeid)} measures memory: add it to MEASURED in tests/conftest.py"
            )
    items.sort(key=lambda item: place(file(item.nodeid)))
    for name in CLUSTER_FIXTURES:
        first = next((item for item in items if name in getattr(item, "fixturenames", ())), None)
        if first is not None:
            first.add_marker(pytest.mark.timeout(FIRST_BUILD_S), append=False)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Restore the umask after each test.

    A command that runs in the test's process may set one that makes its files private.
    """
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


def measures(item: pytest.Item) -> bool:
    """Whether a test's file uses tests/support/memory.py."""
    used = vars(getattr(item, "module", None) or object).values()
    return any(getattr(value, "__module__", None) == "memory" for value in used)


@cache
def place(path: str) -> int:
    """The position of a test's file in `ORDER`."""
    return next(n for n, folder in enumerate(ORDER) if below(path, folder))


def below(nodeid: str, *paths: str) -> bool:
    """Whether a test lies in one of these files or folders of the repository."""
    return any(PurePath(file(nodeid)).is_relative_to(path) for path in paths)


def file(nodeid: str) -> str:
    """A test's file, as a path from the repository's root."""
    return nodeid.partition("::")[0]
