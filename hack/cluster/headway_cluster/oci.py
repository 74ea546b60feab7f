"""Writes an OCI image archive from a folder. It needs only a tar writer."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAUSE_IMAGE = "localhost/headway/pause:1"

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MEDIA = "application/vnd.oci.image"


@dataclass(frozen=True)
class Image:
    """The name of an image, and how to start its process."""

    name: str
    """Name with a registry part and a tag, such as `localhost/headway/testbox:1`."""
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Sequence[str] = ("PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",)
    user: str = ""
    workdir: str = "/"


def write_archive(image: Image, root: Path, target: Path) -> Path:
    """Write folder `root` as the only layer of `image`. The same input gives the same bytes."""
    layer = _layer(root)
    compressed = gzip.compress(layer, compresslevel=1, mtime=0)
    config = _json(_config(image, diff_id=_digest(layer)))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.manifest.v1+json",
            "config": _descriptor(f"{MEDIA}.config.v1+json", config),
            "layers": [_descriptor(f"{MEDIA}.layer.v1.tar+gzip", compressed)],
        }
    )
    entry = _descriptor(f"{MEDIA}.manifest.v1+json", manifest)
    entry["annotations"] = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name,
    }
    index = _json({"schemaVersion": 2, "manifests": [entry]})
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": index}
    for blob in (compressed, config, manifest):
        files[f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}"] = blob
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w") as archive:
        for name, content in files.items():
            _add(archive, name, content)
    return target


def _config(image: Image, *, diff_id: str) -> dict[str, object]:
    process: dict[str, object] = {
        "Env": list(image.environment),
        "WorkingDir": image.workdir,
        "User": image.user,
    }
    if image.entrypoint:
        process["Entrypoint"] = list(image.entrypoint)
    if image.command:
        process["Cmd"] = list(image.command)
    return {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": process,
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }


def _layer(root: Path) -> bytes:
    """The folder `root` as an uncompressed tar file, in a fixed order, owned by user root, with times of
    0."""

    def normal(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for path in sorted(root.rglob("*")):
            layer.add(path, arcname=str(path.relative_to(root)), recursive=False, filter=normal)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
