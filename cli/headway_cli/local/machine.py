"""Keeps a plan's objects and runs their pods on one machine: what a cluster does for the operator."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import aiohttp

from headway_api import names
from headway_api.document import Json
from headway_api.keys import Key
from headway_cli.local import workloads
from headway_cli.local.pod import Pod, PodPlace, kill_all, left_over, remove_folders
from headway_cli.local.workloads import Step, moment
from headway_operator.plan.context import Mode, Wanted
from headway_operator.plan.observed import Observed

KEY_BYTES: Final = 32
NETWORKS: Final = range(16, 240)
"""Values of the second number in a job's loopback addresses: each job has its own 127.N.0.0/16."""
LOOPBACK: Final = "127.0.0.1"
FIRST_HOST: Final = 2
WORKLOADS: Final = {"Job": "job", "Deployment": "deployment"}
INDEX: Final = "batch.kubernetes.io/job-completion-index"
LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of the random end of a pod's name, as in Kubernetes. Without vowels they form no words."""

Ref = tuple[str, str]
"""Kind and name of an object. All objects of a job are in one namespace."""


class MachineBusyError(Exception):
    """No subnet of the loopback network is free."""


@dataclass(frozen=True)
class Network:
    """A subnet of the loopback network, which only one job of this machine has at a time."""

    number: int
    lock: socket.socket

    @classmethod
    def take(cls) -> Network:
        """Take the first free subnet.

        Raises:
            MachineBusyError: no subnet is free.
        """
        for number in NETWORKS:
            lock = socket.socket(socket.AF_UNIX)
            try:
                lock.bind(f"\0headway-local-{number}")  # the kernel frees the name when this process ends
            except OSError:
                lock.close()
                continue
            return cls(number, lock)
        raise MachineBusyError(f"{len(NETWORKS)} jobs run on this machine: wait until one of them has ended")

    def address(self, host: int) -> str:
        """The address in this subnet whose last number is `host`."""
        return f"127.{self.number}.0.{host}"


class Machine:
    """The objects and pods of one job. Use it in an `async with`: afterwards no process of the job runs."""

    def __init__(
        self, folder: Path, modules: Path, job: Json, coordinator: Mapping[str, str] | None = None
    ) -> None:
        """
        Args:
            folder: the job's folder, for all files of the job.
            modules: folder of the environment's modules.
            job: the job with its metadata.
            coordinator: further environment variables of the coordinator.
        """
        self._coordinator = coordinator or {}
        self._folder = folder
        self._modules = modules
        self._namespace = job["metadata"]["namespace"]
        self._stem = names.stem(job["kind"], job["metadata"]["name"])
        service = ((job["spec"].get("agent") or {}).get("http") or {}).get("service")
        self._agent = None if service is None else f"{service['name']}.{self._namespace}.svc"
        """Host name of the user's agent, which the user starts on this machine; None without one."""
        self._objects: dict[Ref, Json] = {}
        self._pods: dict[str, Pod] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._hosts: dict[tuple[str, int], int] = {}
        """Last number of each pod's address, by workload and index. A pod's successor gets its address."""

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(kill_all, left_over(self._folder))
        await asyncio.to_thread(remove_folders, self._folder)
        self._network = Network.take()
        self._port = _free_port(LOOPBACK)
        self._http = aiohttp.ClientSession()
        for name in ("logs", "config-maps", "secrets", "cache"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        self._write_hosts()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every pod: all get SIGTERM at once, and SIGKILL after their grace periods."""
        try:
            ending = (self._end(pod) for pod in list(self._pods.values()))
            await asyncio.gather(*ending, return_exceptions=True)
        finally:
            kill_all(left_over(self._folder))
            await self._http.close()
            self._network.lock.close()

    # carrying out the plan

    async def carry_out(self, wanted: Iterable[Wanted], to_delete: Iterable[Json]) -> None:
        """Create the wanted objects, delete others, and start or end the pods of each workload."""
        for body in to_delete:
            self._delete(body)
        for item in wanted:
            self._apply(item)
        for (kind, _), body in list(self._objects.items()):
            if kind in WORKLOADS:
                self._control(body)
        self._write_hosts()

    def observed(self, sources: Mapping[str, Json]) -> Observed:
        """All objects and pods, as the operator observes a cluster.

        Args:
            sources: the jobs whose weights this job uses, by name.
        """
        pods = (pod.seen() for pod in self._pods.values())
        return Observed(datetime.now(UTC), (*self._objects.values(), *pods), sources=sources)

    def is_still(self) -> bool:
        """Whether no process of the job runs or should run."""
        return not (self._pods or any(kind in WORKLOADS for kind, _ in self._objects))

    def is_empty(self) -> bool:
        """Whether the job has no objects and no pods left."""
        return not (self._objects or self._pods)

    def _apply(self, item: Wanted) -> None:
        kind, _, name = item.ref
        known = self._objects.get((kind, name))
        if item.mode is Mode.SECRET:
            self._make_keys(name)
            return
        if known is not None and item.mode is Mode.PIN:
            if item.replicas is not None:
                known["spec"]["replicas"] = item.replicas
            return
        stamp = {"uid": str(uuid.uuid4()), "creationTimestamp": moment(datetime.now(UTC))}
        kept = stamp if known is None else {key: known["metadata"][key] for key in stamp}
        made = {**item.body, "metadata": {**item.body["metadata"], **kept}}
        self._objects[kind, name] = made
        if kind == "ConfigMap":
            self._write_files("config-maps", name, made["data"])

    def _make_keys(self, name: str) -> None:
        """Create random keys once. One of them signs the job's checkpoints."""
        if not (self._folder / "secrets" / name).exists():
            self._write_files("secrets", name, {key.value: secrets.token_urlsafe(KEY_BYTES) for key in Key})

    def _write_files(self, kind: str, name: str, content: Mapping[str, str]) -> None:
        folder = self._folder / kind / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for key, text in content.items():
            new = folder / f".{key}"
            new.write_text(text)
            new.replace(folder / key)

    def _delete(self, body: Json) -> None:
        kind, name = body["kind"], body["metadata"]["name"]
        if kind == "Pod":
            if (pod := self._pods.get(name)) is not None:
                self._begin_end(pod)
            return
        self._objects.pop((kind, name), None)
        if kind in WORKLOADS:
            for pod in self._pods_of(name):
                self._begin_end(pod)

    # workloads

    def _pods_of(self, workload: str) -> list[Pod]:
        return [pod for pod in self._pods.values() if pod.place.workload == workload]

    def _control(self, body: Json) -> None:
        name = body["metadata"]["name"]
        pods = self._pods_of(name)
        # A pod that is ending counts until it is gone, because its successor gets its address.
        states = [pod.state for pod in pods]
        step: Step
        if body["kind"] == "Job":
            step = workloads.job(body, states, datetime.now(UTC))
        else:
            step = workloads.deployment(body, states, sum(pod.ready for pod in pods))
        body["status"] = step.status
        for pod in pods:
            if pod.name in step.delete:
                self._begin_end(pod)
        for index in step.create:
            self._start(body, index)

    def _start(self, workload: Json, index: int) -> None:
        name, template = workload["metadata"]["name"], workload["spec"]["template"]
        indexed = workload["spec"].get("completionMode") == "Indexed"
        end = "".join(secrets.choice(LETTERS) for _ in range(5))
        metadata = {
            **template["metadata"],
            "name": f"{name}-{index}-{end}" if indexed else f"{name}-{end}",
            "namespace": self._namespace,
        }
        if indexed:
            metadata["annotations"] = {**template["metadata"].get("annotations", {}), INDEX: str(index)}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        mounts = self._mounts(template["spec"], f"{name}-{index}")
        place = PodPlace(
            workload=name,
            address=self._address(name, index),
            index=index,
            log=self._folder / "logs" / f"{metadata['name']}.log",
            mounts=mounts,
            variables=self._variables() | _folders(mounts) | self._role_variables(metadata["labels"]),
            lent=(self._network.lock.fileno(),),
        )
        pod = self._pods[metadata["name"]] = Pod(body, place, self._http)
        pod.start()

    def _begin_end(self, pod: Pod) -> None:
        if pod.name not in self._ending:
            self._ending[pod.name] = asyncio.create_task(self._end(pod))

    async def _end(self, pod: Pod) -> None:
        try:
            await pod.end()
        finally:
            self._pods.pop(pod.name, None)
            self._ending.pop(pod.name, None)

    # folders and addresses

    def _address(self, workload: str, index: int) -> str:
        taken = self._hosts.setdefault((workload, index), FIRST_HOST + len(self._hosts))
        return self._network.address(taken)

    def _mounts(self, spec: Json, pod: str) -> dict[str, Path]:
        """The folder of this machine for each path that a pod mounts."""
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        (container, *_) = spec["containers"]
        found: dict[str, Path] = {}
        for mount in container["volumeMounts"]:
            volume, at = volumes[mount["name"]], mount["mountPath"]
            if "configMap" in volume:
                found[at] = self._folder / "config-maps" / volume["configMap"]["name"]
            elif "secret" in volume:
                found[at] = self._token(volume["secret"], at)
            elif "projected" in volume:
                (first, *_) = volume["projected"]["sources"]
                found[at] = self._folder / "secrets" / first["secret"]["name"]
            elif at == names.CACHE_DIR:
                found[at] = self._folder / "cache" / pod
                found[at].mkdir(exist_ok=True)
        return found

    def _token(self, volume: Json, at: str) -> Path:
        """A folder with a link at the path of each key of a mounted Secret. The Secret may be absent."""
        folder = self._folder / "mounts" / at.lstrip("/")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for item in volume["items"]:
            link = folder / item["path"]
            link.unlink(missing_ok=True)
            link.symlink_to(self._folder / "secrets" / volume["secretName"] / item["key"])
        return folder

    def _variables(self) -> dict[str, str]:
        """Environment variables that all processes of a local job get, and that pods of a cluster lack."""
        folder = self._folder
        coordinator = self._address(names.child(self._stem, names.COORDINATOR), 0)
        learner = self._address(names.child(self._stem, names.LEARNER), 0)
        return {
            names.ENV_LOCAL_JOB: str(folder),
            names.ENV_JOB_FOLDER: str(folder),
            names.ENV_HOSTS: str(folder / "hosts"),
            names.ENV_COORDINATOR_URL: f"http://{coordinator}:{names.PORT_COORDINATOR}",
            names.ENV_DIRECT_ADDRESS: f"{learner}:{names.PORT_DIRECT}",
            names.ENV_ENVIRONMENT_MODULES: str(self._modules),
            names.ENV_SANDBOX_NETWORK: str(self._network.number),
            "MASTER_ADDR": learner,
            "MASTER_PORT": str(self._port),
        }

    def _role_variables(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Further environment variables of the role that a pod's `labels` name."""
        return dict(self._coordinator) if labels.get(names.LABEL_COMPONENT) == names.COORDINATOR else {}

    def _write_hosts(self) -> None:
        """Write the addresses behind each Service to a file, which the processes read instead of the DNS."""
        lines = [
            f"{pod.place.address} {name}.{self._namespace}.svc"
            for (kind, name), service in self._objects.items()
            if kind == "Service"
            for pod in self._pods.values()
            if _selects(service["spec"], pod)
        ]
        lines += [] if self._agent is None else [f"{LOOPBACK} {self._agent}"]
        text = "".join(f"{line}\n" for line in lines)
        path = self._folder / "hosts"
        with contextlib.suppress(FileNotFoundError):
            if path.read_text() == text:
                return
        new = path.with_name("hosts.new")
        new.write_text(text)
        new.replace(path)


def _folders(mounts: Mapping[str, Path]) -> dict[str, str]:
    """Environment variables that replace paths in a pod by folders of this machine."""
    found = {
        names.ENV_KEYS: mounts.get(names.KEYS_DIR),
        names.ENV_PRICES: mounts.get(names.PRICES_DIR),
        names.ENV_JUDGES: _mounted_parent(mounts, names.JUDGES_DIR),
        names.ENV_ENDPOINTS: _mounted_parent(mounts, names.ENDPOINTS_DIR),
    }
    return {name: str(folder) for name, folder in found.items() if folder is not None}


def _mounted_parent(mounts: Mapping[str, Path], folder: str) -> Path | None:
    """The folder of this machine for `folder`, a path in the pod below which several Secrets are mounted."""
    return next((path.parent for at, path in mounts.items() if at.startswith(f"{folder}/")), None)


def _selects(service: Json, pod: Pod) -> bool:
    labels = pod.body["metadata"]["labels"]
    ready = pod.ready or service.get("publishNotReadyAddresses", False)
    return ready and all(labels.get(key) == value for key, value in service["selector"].items())


def _free_port(address: str) -> int:
    with socket.socket() as tried:
        tried.bind((address, 0))
        return int(tried.getsockname()[1])
