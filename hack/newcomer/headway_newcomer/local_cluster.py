"""Replaces a reader's own cluster with the cluster of `KEEP=1 make demo` and a local image registry."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from doc_blocks import ROOT

SYSTEM_PYTHON: Final = "/usr/bin/python3"
CLUSTER: Final = ROOT / "hack" / "cluster" / "cluster.py"
IMAGES: Final = ROOT / "hack" / "images" / "build.py"
PAGES_REGISTRY: Final = "registry.example.com"
PORT: Final = 5055
REGISTRY: Final = f"localhost:{PORT}"
"""Address of the local registry. Image builders and containerd use plain HTTP for this name."""
START_SECONDS: Final = 30.0


class NoClusterError(Exception):
    """The demo's cluster is not running, or the registry does not start; the message says what to do."""


def require() -> None:
    """Check that this machine's cluster runs.

    Raises:
        NoClusterError: it does not.
    """
    if subprocess.run([SYSTEM_PYTHON, CLUSTER, "status"], capture_output=True, check=False).returncode:
        raise NoClusterError("the part `cluster` needs the demo's cluster: run KEEP=1 make demo first")


def variables(folder: Path) -> dict[str, str]:
    """Environment variables with which buildah uses the local registry."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "registries.conf"
    file.write_text(f'[[registry]]\nlocation = "{REGISTRY}"\ninsecure = true\n')
    return {"CONTAINERS_REGISTRIES_CONF": str(file)}


@contextmanager
def registry(folder: Path) -> Iterator[None]:
    """Run Debian's image registry at `REGISTRY` during the block.

    Raises:
        NoClusterError: the registry does not listen.
    """
    result = subprocess.run(
        [SYSTEM_PYTHON, CLUSTER, "docker-registry"], check=True, stdout=subprocess.PIPE, text=True
    )
    config = folder / "registry.json"  # the registry reads YAML, and JSON is YAML
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    config.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": f"127.0.0.1:{PORT}"}}))
    with (folder / "registry.log").open("wb") as log:
        running = subprocess.Popen([result.stdout.strip(), "serve", config], stdout=log, stderr=log)
    try:
        _wait(running)
        yield
    finally:
        running.terminate()
        running.wait()


def _wait(running: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + START_SECONDS
    while True:
        if running.poll() is not None or time.monotonic() > ends:
            raise NoClusterError(f"the registry does not listen at port {PORT}: end what else listens there")
        try:
            socket.create_connection(("127.0.0.1", PORT), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


def sandbox_image() -> str:
    """A command that pushes the sandbox image. For an installation, `make images` pushes all images."""
    return f"python3 {IMAGES} --push --prefix {REGISTRY}/headway --tag 1 sandbox"


def here(line: str) -> str:
    """A line of a page, with the registry's example name replaced by the local registry."""
    return line.replace(PAGES_REGISTRY, REGISTRY)
