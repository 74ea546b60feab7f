"""The real operator as a subprocess on a real API server, with only the rights that its chart gives it.

The pods of a job run a shell instead of Headway's processes, since only the operator is tested. The test acts
as the coordinator: it writes the coordinator's part of the status, with the coordinator's field manager.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import yaml
from api_reader import ApiReader
from ports import free_port

from headway_api import names
from headway_api.document import Json

ROOT = Path(__file__).resolve().parents[2]
IMAGE = os.environ.get("HEADWAY_TEST_IMAGE", "localhost/headway/testbox:1")
API_GROUP = f"apis/{names.API_VERSION}"
"""Path of the API group and version of jobs."""
MANAGER = "headway.dev/operator-under-test"
"""Manager of these jobs, so that an operator that manages the whole cluster leaves them alone."""
DEADLINE = 90.0
PASSED = {"state": "Passed", "checks": []}
"""The status of a preflight that has passed."""
SMALL = {"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}}


class Cluster(Protocol):
    """The interface of the cluster's test fixture."""

    kubeconfig: Path

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """Run kubectl as the cluster's administrator; returns its output, and raises if it fails."""


def wait(
    what: str, condition: Callable[[], Any], deadline: float = DEADLINE, explain: Callable[[], Any] = str
) -> Any:
    """Wait until `condition` returns something true; returns that."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {deadline:.0f} s; {explain()}")


def shell(script: str = "exec sleep 3600") -> Json:
    """A pod template fragment that runs a script instead of a role's process."""
    no_probes = dict.fromkeys(("startupProbe", "readinessProbe", "livenessProbe"))
    return {"command": ["/bin/sh", "-c", script], **no_probes}


class Rig:
    """A namespace with an operator for it."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.kind = names.TRAINING_KIND
        """Kind of the jobs that the methods below use."""
        self.scripts: dict[str, str] = {}
        """Role -> the script that its pods run instead of sleeping."""
        self.settings: Json = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._kubeconfig = folder / "operator.kubeconfig"
        self._reader = ApiReader(cluster.kubeconfig, namespace)
        self.port = 0

    @property
    def evaluations(self) -> Rig:
        """A view of this rig whose methods use evaluations."""
        view = copy.copy(self)
        view.kind = names.EVAL_KIND
        return view

    @property
    def resource(self) -> str:
        """The name of the jobs' resource for kubectl."""
        return names.PLURALS[self.kind]

    def prepare(self) -> None:
        """Create the namespace, the custom resource definitions, and the operator's rights by the chart."""
        self.cluster.kubectl("create", "namespace", self.namespace)
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
        self.cluster.kubectl("apply", "-f", "-", input=self.rendered("rbac.yaml", "serviceaccount.yaml"))
        self._write_kubeconfig()

    def rendered(self, *templates: str) -> str:
        """Render templates of the chart for an operator that watches only this namespace."""
        folder = subprocess.run(
            ["/usr/bin/python3", str(ROOT / "hack/cluster/cluster.py"), "tools"],
            check=True, text=True, stdout=subprocess.PIPE, timeout=1200,
        ).stdout.strip()  # fmt: skip
        chart = str(ROOT / "charts" / "headway")
        command = [f"{folder}/helm", "template", "headway", chart, "-n", self.namespace]
        command += ["--set", f"watchNamespaces={{{self.namespace}}},rbac.aggregate=false"]
        command += [word for template in templates for word in ("-s", f"templates/{template}")]
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, timeout=60).stdout

    def _write_kubeconfig(self) -> None:
        admin = json.loads(self.cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
        token = self.cluster.kubectl(
            "create", "token", "headway-operator", "-n", self.namespace, "--duration=1h"
        ).strip()
        admin["users"] = [{"name": user["name"], "user": {"token": token}} for user in admin["users"]]
        self._kubeconfig.write_text(json.dumps(admin))

    def act_as_administrator(self) -> None:
        """Give later operators the administrator's rights, which outlive the namespace."""
        self._kubeconfig = self.cluster.kubeconfig

    def start(self) -> subprocess.Popen[bytes]:
        """Start another operator process. `port` is the port of the latest one."""
        self.port = free_port()
        config = self.folder / f"config-{self.port}.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        environ = os.environ | {"HEADWAY_OPERATOR_CONFIG": str(config), "KUBECONFIG": str(self._kubeconfig)}
        with (self.folder / f"log-{self.port}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headway_operator"],
                env=environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _config(self) -> Json:
        roles = names.ROLES[:4]
        return {
            "images": dict.fromkeys(roles, IMAGE),
            "accelerator": "",
            "manager": MANAGER,
            "jobRoles": {"kind": "Role", "prefix": "headway"},
            "watchNamespaces": [self.namespace],
            "port": self.port,
            "resources": dict.fromkeys(roles, SMALL),
            "roleTemplates": {
                role: {
                    "spec": {
                        "terminationGracePeriodSeconds": 0,
                        "containers": [{"name": role, **shell(self.scripts.get(role, "exec sleep 3600"))}],
                    }
                }
                for role in roles
            },
        } | self.settings

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill an operator without notice."""
        process.kill()
        process.wait(timeout=10)

    def stop(self) -> None:
        """End every operator with SIGTERM."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(timeout=30)
        self._processes.clear()

    def log(self) -> str:
        """The log of the latest operator."""
        return (self.folder / f"log-{self.port}").read_text()

    def metric(self, line: str) -> float:
        """Sum of the samples whose line starts with `line`; 0 if the operator does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return 0.0
        return sum(float(found.rpartition(" ")[2]) for found in text.splitlines() if found.startswith(line))

    def leads(self) -> bool:
        """Whether the latest operator is the leader."""
        return self.metric("headway_operator_leader") == 1

    def job(self, name: str, **spec: Any) -> Json:
        """A small job; `spec` replaces whole blocks."""
        smallest: Json = {
            "environment": {"image": IMAGE, "entrypoint": "env:Env"},
            "output": {"uri": "s3://b/runs"},
            "managedBy": MANAGER,
        }
        if self.kind == names.TRAINING_KIND:
            rows = {"train": {"uri": "s3://b/train.jsonl"}, "validation": {"uri": "s3://b/val.jsonl"}}
            smallest |= {"model": {"base": "hf://Qwen/Qwen3-8B"}, "data": rows}
        else:
            base = {"name": "base", "model": {"base": "hf://Qwen/Qwen3-8B"}}
            smallest |= {"candidates": [base], "data": {"uri": "s3://b/test.jsonl"}}
        metadata = {"name": name, "namespace": self.namespace}
        return {
            "apiVersion": names.API_VERSION,
            "kind": self.kind,
            "metadata": metadata,
            "spec": smallest | spec,
        }

    def apply(self, name: str, **spec: Any) -> None:
        """Apply a job with kubectl, as a user does."""
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(self.job(name, **spec)))

    def run(self, name: str, **spec: Any) -> None:
        """Start a job and wait until its four roles run."""
        self.apply(name, **spec)
        self.first_pods(name)
        self.tell(name, preflight=PASSED)
        self.trains(name)

    def first_pods(self, name: str) -> None:
        """Wait for the pods of coordinator and broker, which exist before the preflight."""
        roles = ("coordinator", "broker")
        wait("the first pods", lambda: all(self.pods(name, role) for role in roles), explain=self.log)

    def trains(self, name: str) -> None:
        """Wait until every role runs."""
        wait("a job that trains", lambda: self.state(name) == "Training", explain=lambda: self.story(name))

    def story(self, name: str) -> str:
        """A job's status and the operator's log, for a failed assertion."""
        return f"{json.dumps(self.get(name).get('status'), indent=1)}\n{self.log()[-3000:]}"

    def patch(self, name: str, spec: Json) -> None:
        """Patch a job with kubectl, as a user does."""
        body = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", self.resource, name, "-n", self.namespace, "--type=merge", "-p", body)

    def get(self, name: str) -> Json:
        """The job as the API server has it now."""
        return self._reader.one(API_GROUP, self.resource, name)

    def state(self, name: str) -> str | None:
        """The state in a job's status, which the printer column shows."""
        state: str | None = self.get(name).get("status", {}).get("state")
        return state

    def condition(self, name: str, kind: str) -> Json:
        """A condition of a job; empty if the job does not have it."""
        conditions = self.get(name).get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})

    def wait_true(self, name: str, kind: str) -> Json:
        """Wait until a condition is true; returns it."""
        return wait(
            f"{name} to be {kind}",
            lambda: (found := self.condition(name, kind)).get("status") == "True" and found,
            explain=lambda: self.story(name),
        )  # type: ignore[no-any-return]

    def tell(self, name: str, **status: Any) -> None:
        """Write fields of the status as the coordinator does."""
        job = self.job(name)
        body = {key: job[key] for key in ("apiVersion", "kind", "metadata")} | {"status": status}
        self.cluster.kubectl(
            "apply", "--server-side", "--subresource=status",
            f"--field-manager={names.FIELD_MANAGER_COORDINATOR}", "-f", "-", input=json.dumps(body),
        )  # fmt: skip

    def children(self, name: str) -> dict[str, Json]:
        """All objects labelled with a job's name, by kind/name."""
        selector = f"{names.LABEL_JOB_NAME}={name},{names.LABEL_JOB_KIND}={self.kind}"
        return self._reader.labelled(selector)

    def pods(self, name: str, role: str) -> list[Json]:
        """Pods of a role that are not being deleted."""
        selector = f"{names.LABEL_JOB_NAME}={name},{names.LABEL_COMPONENT}={role}"
        found = self._reader.labelled(selector, ["Pod"]).values()
        return [item for item in found if "deletionTimestamp" not in item["metadata"]]

    def can(
        self,
        account: str,
        verb: str,
        resource: str,
        *,
        group: str = "",
        name: str = "",
        subresource: str = "",
    ) -> bool:
        """Ask the API server whether a service account of the namespace may do something."""
        attributes = {
            "namespace": self.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "name": name,
            "subresource": subresource,
        }
        user = f"system:serviceaccount:{self.namespace}:{account}"
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        answer = json.loads(self.cluster.kubectl("create", "-o", "json", "-f", "-", input=json.dumps(review)))
        return bool(answer["status"]["allowed"])

    def delete(self, name: str, *options: str) -> None:
        """Delete a job with kubectl, and wait until it is gone."""
        self.cluster.kubectl("delete", self.resource, name, "-n", self.namespace, "--timeout=60s", *options)

    def exists(self, name: str) -> bool:
        """Whether there is a job of this name."""
        return self._reader.exists(API_GROUP, self.resource, name)

    def finalizers(self, name: str) -> list[str]:
        """The finalizers of a job."""
        found: list[str] = self.get(name)["metadata"].get("finalizers", [])
        return found

    def let_go(self, name: str) -> None:
        """Remove a job's finalizers, as docs/operations.md says for a cluster without an operator."""
        off = '{"metadata":{"finalizers":null}}'
        self.cluster.kubectl("patch", self.resource, name, "-n", self.namespace, "--type=merge", "-p", off)

    def clean(self) -> None:
        """End every operator and remove every job."""
        self.stop()
        for jobs in (self, self.evaluations):
            found = self.cluster.kubectl("get", jobs.resource, "-n", self.namespace, "-o", "name")
            for line in found.split():
                jobs.let_go(line.rpartition("/")[2])
            self.cluster.kubectl("delete", jobs.resource, "--all", "-n", self.namespace, "--timeout=60s")

    def remove(self) -> None:
        """Remove the namespace and everything in it."""
        self.clean()
        self._reader.close()
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")
