"""Chooses the image of each component, and the folders of this machine that its pods mount.

On this machine's cluster the heavy processes run from the `host` image. Pods mount the checkout and its
Python environment read-only, so these need not be copied into images of gigabytes. On any other cluster every
component has its own image.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway_demo.settings import ROOT, Settings

SYSTEM_PYTHON = "/usr/bin/python3"
BUILD = ROOT / "hack" / "images" / "build.py"
CLUSTER = ROOT / "hack" / "cluster" / "cluster.py"
ENVIRONMENT = "examples/sop-quickstart"

IN_POD = Path("/opt/headway")
PYTHON = str(IN_POD / "venv" / "bin" / "python")
VERSITYGW = str(IN_POD / "tools" / "versitygw")

LOCAL = ("host", "operator", "sandbox", ENVIRONMENT)
"""The images that are built for this machine's cluster."""
HEAVY = ("coordinator", "learner", "rollout")
RESOURCES = {
    "coordinator": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
    "broker": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
    "learner": {"requests": {"cpu": "300m", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
    "rollout": {"requests": {"cpu": "300m", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "5Gi"}},
    "sandbox": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"cpu": "500m", "memory": "48Mi"}},
}
"""Resources for a machine with two cores and 24 GiB, and a model of about a megabyte."""


def _output(*command: str | Path) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, timeout=3600).stdout


def published() -> dict[str, str]:
    """Public images of the object store and MLflow, in the same versions as on this machine's cluster."""
    mlflow = _version(ROOT / "requirements" / "all.txt", r"^mlflow==(\S+)")
    versitygw = _version(ROOT / "hack/cluster/go/go.mod", r"^\s*github\.com/versity/versitygw v(\S+)")
    return {
        "objects": f"ghcr.io/versity/versitygw:v{versitygw}",
        "mlflow": f"ghcr.io/mlflow/mlflow:v{mlflow}",
    }


def _version(lock: Path, pattern: str) -> str:
    found = re.search(pattern, lock.read_text(), re.MULTILINE)
    assert found, f"{lock} has no line like {pattern}"
    return found[1]


def provide(settings: Settings) -> dict[str, str]:
    """The image reference of every component. For this machine's cluster, the images are first built and
    loaded."""
    prefix, tag = settings.image_prefix, settings.image_tag
    if settings.current_cluster:
        own = {
            name: f"{prefix}/{name}:{tag}"
            for name in ("operator", "coordinator", "rollout", "trainer", "sop-quickstart")
        }
        return {
            "operator": own["operator"], "broker": own["operator"], "coordinator": own["coordinator"],
            "rollout": own["rollout"], "learner": own["trainer"], "sop-quickstart": own["sop-quickstart"],
        } | published()  # fmt: skip
    names = ("--prefix", prefix, "--tag", tag)
    built = _output(SYSTEM_PYTHON, BUILD, "--load", *names, *LOCAL)
    refs = {Path(line.split("\t")[0]).name.split(":")[0]: line.split("\t")[0] for line in built.splitlines()}
    host = dict.fromkeys((*HEAVY, "objects", "mlflow"), refs["host"])
    return refs | host | {"broker": refs["operator"]}


def build(settings: Settings) -> None:
    """Build the images for this machine's cluster. It needs no running cluster; `provide` later loads
    them."""
    names = ("--prefix", settings.image_prefix, "--tag", settings.image_tag)
    _output(SYSTEM_PYTHON, BUILD, *names, *LOCAL)


def tools() -> Path:
    """Folder with helm and versitygw, which are built if they are missing."""
    return Path(_output(SYSTEM_PYTHON, CLUSTER, "tools").strip())


def host_mounts(settings: Settings) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Mounts and volumes through which a pod uses this machine's Python and programs; none on another
    cluster."""
    if settings.current_cluster:
        return [], []
    venv = Path(_output(SYSTEM_PYTHON, ROOT / "hack" / "python" / "env.py", "path").strip())
    return mounted(lent(venv, tools(), settings.cache / "vllm"))


def lent(venv: Path, programs: Path, model_classes: Path) -> dict[str, tuple[Path, Path]]:
    """Name of a volume -> its path in a pod, and the folder of this machine.

    `model_classes` is vLLM's cache of model classes, which `hack/python/model_classes.py` has filled.
    """
    folders = {"venv": venv, "src": ROOT, "tools": programs, "vllm": model_classes}
    found = {name: (IN_POD / name, folder) for name, folder in folders.items()}
    if (interpreter := own_interpreter(venv)) is not None:
        found["python"] = (interpreter, interpreter)
    return found


def own_interpreter(venv: Path) -> Path | None:
    """Folder of the environment's interpreter; None if the image has an interpreter at the same path."""
    home = Path(_version(venv / "pyvenv.cfg", r"^home = (.+)$"))
    return None if home == Path(SYSTEM_PYTHON).parent else home.parent


def mounted(folders: Mapping[str, tuple[Path, Path]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read-only mounts for `folders`, and the volumes that they name."""
    mounts = [{"name": n, "mountPath": str(inside), "readOnly": True} for n, (inside, _) in folders.items()]
    volumes = [
        {"name": name, "hostPath": {"path": str(folder), "type": "Directory"}}
        for name, (_, folder) in folders.items()
    ]
    return mounts, volumes


def chart_values(refs: Mapping[str, str], settings: Settings) -> dict[str, Any]:
    """Values for the chart charts/headway in this run."""
    mounts, volumes = host_mounts(settings)
    lend = {
        role: {"spec": {"volumes": volumes, "containers": [{"name": role, "volumeMounts": mounts}]}}
        for role in HEAVY
        if mounts
    }
    return {
        "replicas": 1,
        "image": refs["operator"],
        "images": {role: refs[role] for role in (*HEAVY, "broker")},
        "accelerator": "",
        "resources": RESOURCES,
        "roleTemplates": lend,
    }
