"""Which Python of this machine pods can borrow, and which of its folders a kind node must show for that."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "cluster"))

from headway_cluster import kind, lending
from headway_cluster.errors import ClusterError
from headway_cluster.layout import Layout
from headway_cluster.lending import Interpreter

DEBIAN = Interpreter(Path("/usr/bin/python3"), (3, 11), Path("/usr"), (2, 36))
OWN = Interpreter(Path("/home/me/python/bin/python3.11"), (3, 11), Path("/home/me/python"), (2, 17))
LAYOUT = Layout(cache=Path("/home/me/cache"), state=Path("/nowhere"))


@pytest.mark.parametrize(
    "python", [DEBIAN, replace(DEBIAN, libc=(2, 39)), OWN, replace(OWN, version=(3, 12))]
)
def test_an_interpreter_that_works_in_a_pod_is_lent(python: Interpreter) -> None:
    lending.check(python)


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        (replace(DEBIAN, version=(3, 12)), r"Python 3\.12; their image has Python 3\.11"),
        (replace(OWN, libc=(2, 38)), r"needs glibc 2\.38; their image has 2\.36"),
    ],
)
def test_an_unsuitable_interpreter_is_refused_with_a_fix(python: Interpreter, reason: str) -> None:
    with pytest.raises(ClusterError, match=reason) as refusal:
        lending.check(python)
    assert "HEADWAY_PYTHON" in refusal.value.fix


def test_the_newest_required_glibc_version_is_found() -> None:
    assert lending.newest_libc([b"..GLIBC_2.2.5\0GLIBC_2.17\0", b"GLIBC_2.9"]) == (2, 17)
    assert lending.newest_libc([b"static"]) == (0, 0)


def test_this_machines_interpreter_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_PYTHON", sys.executable)
    found = lending.interpreter()
    assert found.version == sys.version_info[:2]
    assert found.prefix == Path(sys.base_prefix)
    assert (2, 2) <= found.libc < (3, 0)


@pytest.mark.parametrize(("python", "own"), [(DEBIAN, []), (OWN, ["/home/me/python"])])
def test_a_node_mounts_lent_folders_read_only_at_their_path(python: Interpreter, own: list[str]) -> None:
    (node,) = yaml.safe_load(kind.config(lending.lent(LAYOUT, python)))["nodes"]
    assert [mount["hostPath"] for mount in node["extraMounts"]] == [
        str(Path(__file__).parents[3]),
        "/home/me/cache",
        *own,
    ]
    assert all(mount["hostPath"] == mount["containerPath"] for mount in node["extraMounts"])
    assert all(mount["readOnly"] for mount in node["extraMounts"])
