"""Provides a cluster with Headway, an object store and MLflow during a `with` block."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import yaml

from headway_demo import images, programs, quickstart
from headway_demo.console import Timings
from headway_demo.kube import Kube, KubeError
from headway_demo.objects import Bucket
from headway_demo.settings import NAMESPACE, ROOT, SYSTEM_NAMESPACE, Settings

RELEASE = "headway"
CRD = "rltrainingjobs.headway.dev"
KINDS = (
    "pods,jobs,deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,"
    "endpointslices"
)
"""All kinds of objects that the operator or the broker creates for a job."""
MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"


@dataclass(frozen=True)
class Platform:
    """A cluster with everything that the example job needs."""

    kube: Kube
    refs: Mapping[str, str]
    """The image reference of every component."""
    secret_key: str

    @property
    def environment_image(self) -> str:
        """Image of the example's environment."""
        return self.refs["sop-quickstart"]

    @contextmanager
    def bucket(self) -> Iterator[Bucket]:
        """The bucket in the object store, through a port-forward."""
        with self.kube.forward(NAMESPACE, "service/objects", 7070) as port:
            yield Bucket(port, self.secret_key)


@contextmanager
def platform_up(settings: Settings, timings: Timings) -> Iterator[Platform]:
    """Bring the platform up, and remove it after the block, also on failure and Ctrl-C, unless settings keep
    it."""
    inputs = _made(settings, timings)
    with cluster(settings, timings) as kube:
        with timings.step("images into the cluster"):
            refs = images.provide(settings)
        with timings.step("object store and MLflow"):
            secret_key = _services(kube, refs, settings)
        with timings.step("Headway by its chart"):
            _install(kube, refs, settings)
        platform = Platform(kube, refs, secret_key)
        kube.apply(quickstart.budget())
        with timings.step("upload of model and rows"), platform.bucket() as bucket:
            bucket.create()
            bucket.upload(inputs, quickstart.PREFIX)
        try:
            yield platform
        finally:
            if settings.current_cluster and not settings.keep:
                with timings.step("removal from the cluster"):
                    _uninstall(kube, settings)


def _made(settings: Settings, timings: Timings) -> Path:
    """Build and make everything that needs no cluster. Return the folder with the base model and the rows."""
    if settings.current_cluster:
        with timings.step("base model and rows"):
            return quickstart.inputs(settings.cache, settings.seed)
    with programs.building() as build:
        with timings.step("images, while the cluster's programs are built"):
            images.build(settings)
        with timings.step("base model and rows, while the cluster's programs are built"):
            inputs = quickstart.inputs(settings.cache, settings.seed)
        with timings.step("the rest of the cluster's programs"):
            build.wait()
    return inputs


@contextmanager
def cluster(settings: Settings, timings: Timings) -> Iterator[Kube]:
    """kubectl's current cluster, or this machine's. If this function started the cluster, it stops it after
    the block."""
    if settings.current_cluster:
        kube = Kube(None)
        if kube.run("get", "crd", CRD, "--ignore-not-found", "-o", "name"):
            raise KubeError(
                "Headway is already installed on this cluster, and the demo would replace it; apply "
                "examples/sop-quickstart/job.yaml to this cluster instead, or choose another cluster"
            )
        yield kube
        return
    found = _cluster("status", check=False)
    with timings.step("cluster"):
        _cluster("up")
    try:
        yield _local()
    finally:
        if not found and not settings.keep:
            with timings.step("cluster down"):
                _cluster("down")


def _cluster(verb: str, *, check: bool = True) -> bool:
    """Run a command of hack/cluster, and return whether it succeeded."""
    command = [images.SYSTEM_PYTHON, str(images.CLUSTER), verb]
    return subprocess.run(command, check=check, stdout=None if check else subprocess.DEVNULL).returncode == 0


def _local() -> Kube:
    """This machine's cluster, with a kubectl of the same version."""
    command = [images.SYSTEM_PYTHON, str(images.CLUSTER), "env"]
    text = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    found = dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())
    return Kube(Path(found["KUBECONFIG"]), str(Path(found["PATH"].split(":")[0]) / "kubectl"))


def _services(kube: Kube, refs: Mapping[str, str], settings: Settings) -> str:
    """Start the object store and MLflow, and return the store's secret key."""
    secret_key = _secret_key(kube)
    mounts, volumes = images.host_mounts(settings)
    local = not settings.current_cluster
    values = {
        "namespace": NAMESPACE,
        "secret_key": secret_key,
        "objects_image": refs["objects"],
        "objects_command": json.dumps([images.VERSITYGW] if local else ["versitygw"]),
        "mlflow_image": refs["mlflow"],
        "mlflow_command": json.dumps([images.PYTHON, "-m", "mlflow"] if local else ["mlflow"]),
    }
    scratch_mounts = [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}]
    scratch = [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    for name in ("objects", "mlflow"):
        values[f"{name}_mounts"] = json.dumps(scratch_mounts + mounts)
        values[f"{name}_volumes"] = json.dumps(scratch + volumes)
    # `restricted` forbids hostPath volumes, with which pods mount folders of this machine.
    kube.apply(namespace(NAMESPACE, restricted=settings.current_cluster))
    for name in ("objects", "mlflow"):
        text = Template((MANIFESTS / f"{name}.yaml").read_text()).substitute(values)
        kube.apply(*yaml.safe_load_all(text))
    kube.wait_available(NAMESPACE, "objects")
    return secret_key


def namespace(name: str, *, restricted: bool) -> dict[str, Any]:
    """A namespace, with or without the Pod Security standard `restricted`."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"} if restricted else {}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _secret_key(kube: Kube) -> str:
    """The object store's secret key: the key of the running store, or else a new key."""
    found = kube.get("secrets", "-n", NAMESPACE, "--field-selector=metadata.name=objects")["items"]
    if found:
        return base64.b64decode(found[0]["data"]["AWS_SECRET_ACCESS_KEY"]).decode()
    return secrets.token_hex(16)


def _install(kube: Kube, refs: Mapping[str, str], settings: Settings) -> None:
    """Install the chart with `helm upgrade --install`, and wait for its Deployments."""
    kube.apply(namespace(SYSTEM_NAMESPACE, restricted=True))
    values = json.dumps(images.chart_values(refs, settings))
    command = [
        _helm(settings), "upgrade", "--install", RELEASE, str(ROOT / "charts" / "headway"),
        "--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--values", "-",
    ]  # fmt: skip
    if not settings.current_cluster:
        # Let the chart take over objects that an earlier run or a test applied to this machine's cluster.
        command += ["--take-ownership", "--force-conflicts"]
    done = subprocess.run(
        command, input=values, text=True, capture_output=True, env=kube.environ, timeout=180
    )
    if done.returncode:
        raise KubeError(f"helm: {done.stderr.strip()}")
    for deployment in kube.get("deployments", "-n", SYSTEM_NAMESPACE)["items"]:
        kube.wait_available(SYSTEM_NAMESPACE, deployment["metadata"]["name"])


def _helm(settings: Settings) -> str:
    """The user's helm for the user's own cluster; otherwise the helm that was built for this machine's."""
    return "helm" if settings.current_cluster else str(images.tools() / "helm")


def _uninstall(kube: Kube, settings: Settings) -> None:
    """Remove everything that the demo installed on the user's cluster, and nothing else."""
    kube.run("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=180)
    command = [_helm(settings), "uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--wait"]
    subprocess.run(command, check=True, env=kube.environ, timeout=180)
    kube.run("delete", "namespace", SYSTEM_NAMESPACE, "--ignore-not-found", timeout_s=180)
    others = ("rlevaljobs.headway.dev", "rlbudgets.headway.dev")
    kube.run("delete", "crd", CRD, *others, "--ignore-not-found", timeout_s=120)


def leftovers(kube: Kube) -> list[dict[str, Any]]:
    """Objects of any job that still exist in the demo's namespace."""
    found: dict[str, Any] = kube.get(KINDS, "-n", NAMESPACE, "-l", "headway.dev/job-name")
    return list(found["items"])
