"""The folders and the name of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "cluster"))

from headway_cluster import binaries
from headway_cluster.layout import DEFAULT_STATE, Layout


def test_another_state_is_another_cluster(tmp_path: Path) -> None:
    usual = Layout(cache=tmp_path, state=Path(DEFAULT_STATE))
    spare = Layout(cache=tmp_path, state=tmp_path / "state")
    assert usual.name == "headway-cluster"
    assert spare.name != usual.name


def test_the_environment_moves_both_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADWAY_STATE", str(tmp_path / "state"))
    layout = Layout.from_environment()
    assert (layout.cache, layout.state) == (tmp_path / "cache", tmp_path / "state")


def test_a_builds_key_depends_only_on_its_own_sources() -> None:
    digests = {program.name: binaries.sources_digest(program) for program in binaries.CLUSTER_PROGRAMS}
    assert len(set(digests.values())) == len(digests)
    assert binaries.sources_digest(binaries.DNS) == digests["headway-dns"]


def test_a_key_of_another_modules_program_includes_its_pins(tmp_path: Path) -> None:
    package = tmp_path / "cmd" / "thing"
    package.mkdir(parents=True)
    for path in (package / "main.go", tmp_path / "go.mod", tmp_path / "go.sum"):
        path.write_text("one")
    program = binaries.Program("./cmd/thing", module=tmp_path)
    digests = {binaries.sources_digest(program)}
    for path in (package / "main.go", tmp_path / "go.mod", tmp_path / "go.sum"):
        path.write_text("two")
        digests.add(binaries.sources_digest(program))
    assert len(digests) == 4
