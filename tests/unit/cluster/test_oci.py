"""The archive writer: digests connect the manifest, the configuration and the layers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "cluster"))

from headway_cluster.oci import Image, write_archive

NAME = "localhost/headway/thing:1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "run").write_text("#!/bin/sh\n")
    (root / "bin" / "run").chmod(0o755)
    (root / "bin" / "alias").symlink_to("run")
    return root


def files(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def blob(found: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    content = found[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert hashlib.sha256(content).hexdigest() == descriptor["digest"].partition(":")[2]
    assert len(content) == descriptor["size"]
    return content


def test_every_digest_names_its_content(root: Path, tmp_path: Path) -> None:
    found = files(write_archive(Image(NAME, entrypoint=["/bin/run"]), root, tmp_path / "image.tar"))
    (entry,) = json.loads(found["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == NAME
    manifest = json.loads(blob(found, entry))
    config = json.loads(blob(found, manifest["config"]))
    assert config["config"]["Entrypoint"] == ["/bin/run"]
    (compressed,) = (blob(found, layer) for layer in manifest["layers"])
    layer = gzip.decompress(compressed)
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]


def test_the_layer_keeps_modes_and_links(root: Path, tmp_path: Path) -> None:
    found = files(write_archive(Image(NAME), root, tmp_path / "image.tar"))
    manifest = json.loads(blob(found, json.loads(found["index.json"])["manifests"][0]))
    layer = io.BytesIO(gzip.decompress(blob(found, manifest["layers"][0])))
    with tarfile.open(fileobj=layer) as tar:
        members = {member.name: member for member in tar}
    assert members["bin/run"].mode == 0o755
    assert members["bin/alias"].linkname == "run"
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}


def test_the_same_folder_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    first = write_archive(Image(NAME), root, tmp_path / "first.tar").read_bytes()
    (root / "bin" / "run").touch()
    assert write_archive(Image(NAME), root, tmp_path / "second.tar").read_bytes() == first
