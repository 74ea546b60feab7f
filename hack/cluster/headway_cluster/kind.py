"""The same commands on kind, where a Docker engine answers."""

from __future__ import annotations

from pathlib import Path

from . import binaries
from .layout import SOURCE, Layout
from .shell import run
from .steps import say, step

NAME = "headway"


def exists(layout: Layout) -> bool:
    kind = binaries.folder(layout) / "kind"
    return kind.exists() and NAME in run([kind, "get", "clusters"]).split()


def up(layout: Layout) -> None:
    programs = binaries.build(layout, (binaries.KIND, *binaries.CLUSTER_PROGRAMS[:1]))
    kind = programs / "kind"
    layout.state.mkdir(parents=True, exist_ok=True)
    if NAME not in run([kind, "get", "clusters"]).split():
        with step("creating a kind cluster"):
            config = SOURCE / "manifests" / "kind" / "cluster.yaml"
            run([kind, "create", "cluster", "--name", NAME, "--config", config, "--wait", "180s"])
    layout.admin_kubeconfig.touch(mode=0o600)
    layout.admin_kubeconfig.write_text(run([kind, "get", "kubeconfig", "--name", NAME]))
    say(f"ready: export KUBECONFIG={layout.admin_kubeconfig}")


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
