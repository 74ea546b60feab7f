"""The images and folders that the demo runs its parts from."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))

from headway_demo import images

BIN, VLLM = Path("/cache/bin"), Path("/cache/vllm")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nimplementation = CPython\n")
    return tmp_path


def test_the_mlflow_server_has_the_installed_version() -> None:
    assert images.published()["mlflow"] == f"ghcr.io/mlflow/mlflow:v{version('mlflow')}"


def test_the_object_store_has_the_version_that_is_built() -> None:
    tag = images.published()["objects"].rpartition(":")[2]
    assert f"github.com/versity/versitygw {tag}" in (images.ROOT / "hack/cluster/go/go.mod").read_text()


def test_pods_borrow_folders_of_the_machine_read_only(venv: Path) -> None:
    mounts, volumes = images.mounted(images.lent(venv, BIN, VLLM))
    names = {m["mountPath"].removeprefix("/opt/headway/") for m in mounts}
    assert names == {"venv", "src", "tools", "vllm"}
    assert all(mount["readOnly"] for mount in mounts)
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in volumes}
    expected = {"venv": str(venv), "src": str(images.ROOT), "tools": str(BIN), "vllm": str(VLLM)}
    assert paths == expected


def test_an_interpreter_missing_in_the_image_is_lent_at_its_path(venv: Path) -> None:
    (venv / "pyvenv.cfg").write_text("home = /home/me/python/bin\n")
    mounts, volumes = images.mounted(images.lent(venv, BIN, VLLM))
    assert {"name": "python", "mountPath": "/home/me/python", "readOnly": True} in mounts
    assert {"name": "python", "hostPath": {"path": "/home/me/python", "type": "Directory"}} in volumes
