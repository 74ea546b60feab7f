"""The commands of the local cluster on kind, for machines with a running Docker engine."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from string import Template

from . import binaries, images, lending
from .errors import ClusterError
from .layout import POD_CIDR, SERVICE_CIDR, SOURCE, Layout
from .shell import run
from .steps import say, step

NAME = "headway"
CONFIG = SOURCE / "manifests" / "kind" / "cluster.yaml"


def exists(layout: Layout) -> bool:
    kind = binaries.folder(layout) / "kind"
    return kind.exists() and NAME in run([kind, "get", "clusters"]).split()


def config(lent: Sequence[Path]) -> str:
    """kind's configuration: one node, with the folders `lent` of this machine mounted read-only."""
    mounts = [{"hostPath": str(path), "containerPath": str(path), "readOnly": True} for path in lent]
    return Template(CONFIG.read_text()).substitute(
        pod_cidr=POD_CIDR, service_cidr=SERVICE_CIDR, extra_mounts=json.dumps(mounts)
    )


def up(layout: Layout) -> None:
    python = lending.interpreter()
    lending.check(python)
    _make_state(layout)
    programs = binaries.build(layout, (binaries.KIND, *binaries.CLUSTER_PROGRAMS[:1]))
    kind = programs / "kind"
    if NAME not in run([kind, "get", "clusters"]).split():
        with step("creating a kind cluster"):
            run(
                [kind, "create", "cluster", "--name", NAME, "--config", "-", "--wait", "180s"],
                stdin=config(lending.lent(layout, python)),
            )
        _load_testbox(layout)
    layout.admin_kubeconfig.touch(mode=0o600)
    layout.admin_kubeconfig.write_text(run([kind, "get", "kubeconfig", "--name", NAME]))
    say(f"ready: export KUBECONFIG={layout.admin_kubeconfig}")


def _make_state(layout: Layout) -> None:
    try:
        layout.state.mkdir(parents=True, exist_ok=True)
    except PermissionError as refused:
        raise ClusterError(
            f"{layout.state} cannot be made: {refused.strerror}",
            fix="set HEADWAY_STATE to a folder that you may write to",
        ) from refused


def _load_testbox(layout: Layout) -> None:
    """Load the test box, a busybox image that some tests use for small pods."""
    if not shutil.which("busybox"):
        say("busybox is not installed: pods of tests will lack their image (apt-get install busybox-static)")
        return
    with tempfile.TemporaryDirectory(prefix="headway-image-") as scratch:
        load_image(layout, images.build_testbox(Path(scratch)))


def down(layout: Layout) -> None:
    programs = binaries.build(layout, (binaries.KIND,))
    with step("deleting the kind cluster"):
        run([programs / "kind", "delete", "cluster", "--name", NAME])
    layout.admin_kubeconfig.unlink(missing_ok=True)


def load_image(layout: Layout, archive: Path) -> None:
    kind = binaries.folder(layout) / "kind"
    with step(f"loading {archive.name}"):
        run([kind, "load", "image-archive", "--name", NAME, archive])


def status(layout: Layout) -> bool:
    up_now = exists(layout)
    print(f"kind cluster {NAME}: {'up' if up_now else 'not up'}")
    return up_now
