"""The engines that build a Dockerfile and store the image: Docker, or buildah on machines without Docker."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .settings import EPOCH
from .shell import answers, require, run


class Engine:
    """Docker, through its command line."""

    program = "docker"
    own_base = False
    """Whether mmdebstrap makes the base image. Otherwise the base is built from a published Debian image."""

    def __init__(self) -> None:
        os.environ["DOCKER_BUILDKIT"] = "1"
        # An image with an attestation is an index of two manifests, but the archive contains only one. kind
        # refuses to load such an archive.
        os.environ["BUILDX_NO_DEFAULT_ATTESTATIONS"] = "1"

    def build(self, *arguments: str | Path) -> None:
        """Run the program's `build` command with these arguments."""
        run(self.program, "build", *arguments, quiet=True)

    def has(self, name: str) -> bool:
        """Whether the store has an image of this name."""
        return answers(self.program, "image", "inspect", name)

    def save(self, name: str, reference: str, archive: Path) -> None:
        """Write a stored image to an archive, under the name `reference`."""
        run("docker", "tag", name, reference)
        run("docker", "save", "--output", archive, reference)

    def load(self, archive: Path, reference: str, name: str) -> None:
        """Load the archive of the image `reference` into the store as `name`."""
        run("docker", "load", "--quiet", "--input", archive, quiet=True)
        run("docker", "tag", reference, name)

    def push(self, name: str, reference: str) -> None:
        """Push a stored image to the registry in `reference`, with the program's own login."""
        run("docker", "tag", name, reference)
        run("docker", "push", "--quiet", reference)

    def forget_older(self, name: str) -> None:
        """Remove earlier builds of the image from the store."""
        image, _, current = name.rpartition(":")
        listed = [self.program, "images", "--filter", f"reference={image}", "--format", "{{.Tag}}"]
        for tag in subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split():
            if tag != current:
                # This fails while another stored image uses it as a base. A later call then removes it.
                answers(self.program, "rmi", f"{image}:{tag}")


class Buildah(Engine):
    """buildah as root in a chroot: no daemon, no namespaces, no registry."""

    program = "buildah"
    own_base = True

    def __init__(self) -> None:
        require("buildah")

    def build(self, *arguments: str | Path) -> None:
        options = [
            "--isolation=chroot",
            "--format=oci",
            f"--timestamp={EPOCH}",
            "--layers=false",
            "--pull=never",
        ]
        # Mount this machine's certificates, for builds behind a proxy that has its own certificate.
        options += ["--volume=/etc/ssl/certs:/etc/ssl/certs:ro"] if Path("/etc/ssl/certs").is_dir() else []
        super().build(*options, *arguments)

    def has(self, name: str) -> bool:
        return answers("buildah", "inspect", "--type=image", name)

    def save(self, name: str, reference: str, archive: Path) -> None:
        # Archives are read once, on this machine. So use the fastest compression, not the smallest archive.
        fast = ("--compression-format=gzip", "--compression-level=1")
        run("buildah", "push", "--quiet", *fast, name, f"oci-archive:{archive}:{reference}")

    def load(self, archive: Path, reference: str, name: str) -> None:
        run("buildah", "pull", "--quiet", f"oci-archive:{archive}", quiet=True)
        run("buildah", "tag", reference, name)

    def push(self, name: str, reference: str) -> None:
        run("buildah", "push", "--quiet", name, f"docker://{reference}")


def choose_engine() -> Engine:
    """Docker if an engine runs (an installed client alone is not enough), otherwise buildah."""
    return Engine() if shutil.which("docker") and answers("docker", "info") else Buildah()
