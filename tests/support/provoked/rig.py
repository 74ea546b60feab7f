"""Provokes faults on a cluster, several at the same time, and records what each job showed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from kubernetes import client, config

from headway_analysis.faults.definition import Fault, Stage
from headway_api.document import Json
from headway_api.names import API_VERSION, PLURALS, TRAINING_KIND
from headway_demo import quickstart
from headway_demo.images import RESOURCES
from provoked.provocation import EVALUATED, ODD_MODULE, SMALL, STORE, Provocation, merged
from provoked.resources import Resources, left, of_a_job

AT_ONCE: Final = 4
"""Jobs at the same time. A node with two cores has room for them: test_provoked_resources.py adds up."""
TRAINING: Final = 2
"""Jobs at the same time whose learner and servers start, since these use the cores whatever they request."""
ASKED: Final = of_a_job(SMALL, RESOURCES)
"""The maximum that one job requests."""
ROOM_S: Final = 180
"""Maximum seconds until the pods of earlier jobs are gone."""
PATIENCE_S: Final = 180
"""Additional seconds that a fault may take on a busy machine."""
GONE_S: Final = 90
SETTLED_S: Final = 5
"""Seconds after which nothing more is reported about a job that has ended."""
LOOK_S: Final = 0.4
MERGE: Final = "application/merge-patch+json"
Faults = Mapping[str, tuple[Fault, Provocation]]
"""Name of a fault -> the fault and its provocation."""
MODULE: Final[Json] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": ODD_MODULE},
    "data": {f"{ODD_MODULE}.py": (Path(__file__).parent / "odd.py").read_text()},
}


@dataclass
class Seen:
    """What a provoked job showed."""

    answer: str = ""
    """The message in the API server's answer."""
    status: int = 0
    exists: bool = False
    """Whether the API server accepted the job."""
    job: Json = field(default_factory=dict)
    """The job when its status named the fault, or when the time was up."""
    events: list[Json] = field(default_factory=list)
    """The job's events."""
    seconds: float = 0.0
    """Seconds from the job's creation until its status named the fault."""
    roles: set[str] = field(default_factory=set)
    """Roles of the pods that the job has had until then."""
    left: list[str] = field(default_factory=list)
    """Pods that a failed job still had after `GONE_S` seconds."""
    logs: list[str] = field(default_factory=list)
    """Names of the logs in the store, for a job that failed."""
    error: str = ""
    """The error because of which nothing was recorded."""

    def condition(self, kind: str) -> Json:
        """The condition of this type, or an empty one."""
        found = self.job.get("status", {}).get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})


class Server:
    """A client of the API server with an administrator's rights."""

    def __init__(self, kubeconfig: str) -> None:
        self._api: Any = config.new_client_from_config(kubeconfig)

    def ask(
        self, method: str, path: str, body: Json | None = None, kind: str = "application/json"
    ) -> tuple[int, Json]:
        """Send a request; returns the status and the JSON of the answer."""
        headers = {"Content-Type": kind, "Accept": "application/json"}
        try:
            answer = self._api.call_api(
                method, f"{self._api.configuration.host}{path}", header_params=headers, body=body,
                _request_timeout=60,
            )  # fmt: skip
        except client.ApiException as error:
            return error.status or 0, json.loads(error.body or "{}")
        text = answer.read()
        return answer.status, json.loads(text) if text else {}

    def close(self) -> None:
        self._api.close()


def is_finished(job: Json) -> bool:
    """Whether a job has ended."""
    return bool(job.get("status", {}).get("completionTime"))


def path(kind: str, namespace: str, name: str = "") -> str:
    """URL path of a job, or of all of them."""
    found = f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURALS[kind]}"
    return f"{found}/{name}" if name else found


class FaultRig:
    """Provokes faults in namespaces that have the store's credentials."""

    def __init__(self, bench: Any, bucket: Any, secret: Json, prefix: str) -> None:
        """`secret`: the Secret with the store's keys in another namespace."""
        self.server = Server(str(bench.kube.kubeconfig))
        self.bucket = bucket
        self.over = threading.Event()
        """Set once nobody waits for the results any more."""
        self._bench = bench
        self._secret = secret
        self._prefix = prefix
        self._namespaces: set[str] = set()

    def namespace(self, name: str, beside: Iterable[Json] = ()) -> str:
        """Create a namespace with these objects, which replace the rig's own objects of the same names."""
        full = f"{self._prefix}-{name}"
        if full in self._namespaces:
            return full
        self._namespaces.add(full)
        self._bench.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": full}})
        given = {(each["kind"], each["metadata"]["name"]): each for each in (self._secret, MODULE, *beside)}
        for each in given.values():
            self._bench.kube.apply(merged(each, {"metadata": {"namespace": full}}))
        return full

    def manifest(self, fault: Fault, how: Provocation, namespace: str) -> Json:
        """A job that is valid except for the fault's changes."""
        image, name = self._bench.platform.environment_image, how.name or fault.name
        make, small = (
            (quickstart.job, SMALL) if how.kind == TRAINING_KIND else (quickstart.evaluation, EVALUATED)
        )
        found = make(image, name=name)
        found["metadata"]["namespace"] = namespace
        found["spec"] = merged(merged(found["spec"], small), {"output": {"endpointUrl": STORE}})
        found["spec"] = merged(found["spec"], how.changes)
        image = found["spec"]["environment"].get("image", "")
        if image.startswith("@"):
            found["spec"]["environment"]["image"] = self._bench.platform.refs[image[1:]]
        return found

    def all(self, faults: Faults) -> dict[str, Seen]:
        """Provoke all faults: first those at apply, then those that use the cores, then the others."""
        places = {fault.name: self._place(fault, how) for fault, how in faults.values()}
        quick = {name for name, (fault, _) in faults.items() if fault.stage is Stage.APPLY}
        trains = {name for name, (_, how) in faults.items() if how.trains}
        seen = {name: self._seen(*faults[name], places[name]) for name in faults if name in quick}
        for names, at_once in ((trains, TRAINING), (faults.keys() - quick - trains, AT_ONCE)):
            several = {name: faults[name] for name in faults if name in names}
            if several:
                self._await_resources(ASKED * at_once)
                seen |= self._together(several, places, at_once)
        return seen

    def _together(self, faults: Faults, places: Mapping[str, str], at_once: int) -> dict[str, Seen]:
        """Provoke faults, `at_once` at the same time. Those that take longest begin first."""
        order = sorted(faults, key=lambda name: -faults[name][0].seconds)
        with ThreadPoolExecutor(at_once) as threads:
            found = {name: threads.submit(self._seen, *faults[name], places[name]) for name in order}
            try:
                return {name: each.result() for name, each in found.items()}
            except BaseException:  # after an interrupt, nobody waits for the rest
                self.over.set()
                for each in found.values():
                    each.cancel()
                raise

    def _await_resources(self, wanted: Resources) -> None:
        """Wait until the node has these resources left, since pods of earlier tests may still be ending.

        Raises:
            RuntimeError: it has not. A job that waits for the node would report that instead of its fault.
        """
        ends = time.monotonic() + ROOM_S
        while not (found := self._free_resources()).holds(wanted):
            if time.monotonic() > ends:
                raise RuntimeError(f"the jobs together ask for {wanted}, and the node has {found} left")
            time.sleep(2 * LOOK_S)
        print(f"room: {found}; jobs together: {wanted}", flush=True)

    def _free_resources(self) -> Resources:
        """The resources that are left on the only node."""
        (node,) = self.server.ask("GET", "/api/v1/nodes")[1]["items"]
        return left(node, self.server.ask("GET", "/api/v1/pods")[1]["items"])

    def _place(self, fault: Fault, how: Provocation) -> str:
        return self.namespace(fault.name if how.alone else "jobs", how.beside)

    def _seen(self, fault: Fault, how: Provocation, namespace: str) -> Seen:
        one = ProvokedJob(self, fault, how, namespace)
        try:
            return one.run()
        except Exception as error:
            one.seen.error = f"{type(error).__name__}: {error}"
            return one.seen
        finally:
            with suppress(Exception):
                one.clear()
            found = one.seen
            known = found.condition(fault.condition)
            print(
                f"{fault.name}: {found.seconds:.1f} s {known.get('reason')}: {known.get('message')}",
                flush=True,
            )

    def close(self) -> None:
        """Delete the namespaces, and close the client."""
        gone = ("--timeout=180s", "--ignore-not-found")
        self._bench.kube.run("delete", "namespace", *sorted(self._namespaces), *gone, timeout_s=200)
        self.server.close()


class ProvokedJob:
    """A job with one fault."""

    def __init__(self, rig: FaultRig, fault: Fault, how: Provocation, namespace: str) -> None:
        self._server = rig.server
        self._bucket = rig.bucket
        self._over = rig.over
        self._fault = fault
        self._how = how
        self.namespace = namespace
        self._manifest = rig.manifest(fault, how, namespace)
        self.name = str(self._manifest["metadata"]["name"])
        self._path = path(how.kind, namespace, self.name)
        self.seen = Seen()

    def run(self) -> Seen:
        """Provoke the fault, and watch the job until it shows the fault or its time is up."""
        seen, kind = self.seen, self._how.kind
        query = "?" + urlencode({"fieldValidation": "Strict", "fieldManager": "kubectl"})
        began = time.monotonic()
        seen.status, answer = self._server.ask("POST", path(kind, self.namespace) + query, self._manifest)
        if self._how.edit is not None and seen.status == 201:
            seen.status, answer = self._server.ask(
                "PATCH", self._path + query, {"spec": dict(self._how.edit)}, MERGE
            )
        seen.answer = str(answer.get("message", ""))
        seen.seconds = time.monotonic() - began
        seen.exists = self._server.ask("GET", self._path)[0] == 200
        if self._fault.stage is Stage.APPLY:
            return seen
        if seen.status != 201:
            raise AssertionError(f"the API server refused it: {seen.answer}")
        self._how.then(self)
        ends = time.monotonic() + self._fault.seconds + PATIENCE_S
        while not self._look() and time.monotonic() < ends and not self._over.is_set():
            if is_finished(seen.job):
                ends = min(ends, time.monotonic() + SETTLED_S)
            time.sleep(LOOK_S)
        seen.seconds = time.monotonic() - began
        if self._fault.state == "Failed":
            seen.left = [pod["metadata"]["name"] for pod in self._pods_gone()]
            uri = seen.job.get("status", {}).get("artifacts", {}).get("uri")
            seen.logs = self._bucket.names(f"{uri}/logs") if uri else []
        return seen

    def _look(self) -> bool:
        """Read the job; returns whether its status and events show the fault now."""
        fault, seen = self._fault, self.seen
        seen.job = self.get()
        fields = urlencode({"fieldSelector": f"involvedObject.uid={seen.job['metadata']['uid']}"})
        seen.events = self._server.ask("GET", f"/api/v1/namespaces/{self.namespace}/events?{fields}")[1][
            "items"
        ]
        seen.roles |= {
            pod["metadata"]["labels"].get("app.kubernetes.io/component", "") for pod in self._pods()
        }
        known, status = seen.condition(fault.condition), seen.job.get("status", {})
        has_event = any(event["reason"] == fault.event for event in seen.events)
        shown = (status.get("state"), status.get("reason")) == (fault.state, fault.reason)
        return has_event and shown and bool(fault.pattern.search(known.get("message", "")))

    def _pods(self) -> list[Json]:
        return list(self._server.ask("GET", self._pods_path())[1]["items"])

    def _pods_path(self) -> str:
        label = urlencode({"labelSelector": f"headway.dev/job-name={self.name}"})
        return f"/api/v1/namespaces/{self.namespace}/pods?{label}"

    def _pods_gone(self) -> list[Json]:
        """The job's pods that still exist after `GONE_S` seconds."""
        ends = time.monotonic() + GONE_S
        while (left := self._pods()) and time.monotonic() < ends and not self._over.is_set():
            time.sleep(2 * LOOK_S)
        return left

    def clear(self) -> None:
        """Delete the job and its pods, so that the next job gets their resources."""
        self._server.ask("DELETE", self._path)
        ends = time.monotonic() + GONE_S
        while self._pods() and time.monotonic() < ends and not self._over.is_set():
            self._server.ask("DELETE", f"{self._pods_path()}&gracePeriodSeconds=1")
            time.sleep(LOOK_S)

    def get(self) -> Json:
        """The job as the API server has it now."""
        return self._server.ask("GET", self._path)[1]

    def patch(self, change: Json) -> Json:
        """Merge a change into the job; returns the changed job."""
        return self._server.ask("PATCH", self._path, change, MERGE)[1]

    def put(self, uri: str, content: bytes) -> None:
        """Write an object to the store."""
        self._bucket.put(uri, content)
