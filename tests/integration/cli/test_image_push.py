"""`headway image` as docs/first-environment.md shows it, with a real builder and a real registry."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import debian_program
import pytest
from doc_blocks import ROOT

from headway_cli import images, scaffold

sys.path.insert(0, str(ROOT / "hack" / "newcomer"))
from headway_newcomer import cli, local_cluster
from headway_newcomer.plan import Part

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Debian's registry, with an image under the sandbox image's name.

    Yields the environment of a builder.
    """
    program = debian_program.program("buildah")
    assert images.builder() == "buildah"
    environ = os.environ | local_cluster.variables(tmp_path / "registry")
    base = f"{local_cluster.REGISTRY}/headway/sandbox:1"
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /base\n")
    with local_cluster.registry(tmp_path / "registry"):
        for words in (["build", "-t", base, str(tmp_path / "base")], ["push", base], ["rmi", base]):
            subprocess.run([program, *words], env=environ, check=True, capture_output=True, timeout=120)
        yield environ
        made = [base, f"{local_cluster.REGISTRY}/team/parcels:1"]
        subprocess.run([program, "rmi", *made], env=environ, check=True, capture_output=True, timeout=60)


def test_the_pages_command_pushes_an_image_on_a_registry_base(
    tmp_path: Path, registry: dict[str, str]
) -> None:
    lines = [line for step in cli.chosen([Part.CLUSTER]) for line in step.lines]
    [line] = [local_cluster.here(line) for line in lines if line.startswith("headway image ")]
    scaffold.write(tmp_path / "parcels", scaffold.Template.REPLAY)
    done = subprocess.run(
        [sys.executable, "-m", "headway_cli", *shlex.split(line)[1:]],
        cwd=tmp_path / "parcels",
        env=registry,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, _, digest = done.stdout.removeprefix("spec.environment.image: ").strip().partition("@")
    assert name == f"{local_cluster.REGISTRY}/team/parcels"
    address = f"http://{local_cluster.REGISTRY}/v2/team/parcels/manifests/{digest}"
    with urlopen(Request(address, headers={"Accept": f"{MANIFEST}, */*"}), timeout=30) as answer:
        layers = json.load(answer)["layers"]
    assert len(layers) == 2, "the base's, and the environment's"
