"""The manifest of a sandbox pod, and the meaning of its status. Pure.

A pod omits what it does not need, since each part costs the node time at every start: volumes, probes,
service links, a second container. Only a pod that runs code on the model's behalf has a second container,
`runner`. It runs as another user, in its own PID namespace, with the only folder that commands may write to.
The isolation overrides every template. A container that a template adds gets requests and limits too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from headway_api import exits, names
from headway_api.config import EvalConfig, JobConfig
from headway_api.document import Json
from headway_api.pod_template import bounded, merge
from headway_api.sandbox_api import Problem
from headway_api.spec.environment import EnvironmentSpec

CONTAINER: Final = names.SANDBOX
IDLE_SECONDS: Final = 1800
"""A pod that had no lease for this many seconds is replaced. So no lease outlives the pod's deadline."""
DEFAULT_RESOURCES: Final = {"cpu": "250m", "memory": "512Mi"}
EPHEMERAL_STORAGE: Final = "256Mi"
USER: Final = 65532
RUNNER_USER: Final = 65533
"""User of the container that runs code on the model's behalf; it differs from the server's user."""
AGENT_VOLUME: Final = "headway-agent"
RUNNER_VOLUME: Final = "headway-runner"
"""Volume with the socket on which the server waits for its runner. The runner may only read it."""
RUNNER_VOLUME_SIZE: Final = "1Mi"
BESIDE_RUNNER: Final = {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "1Mi"}
"""Requests of a server that has a runner. The runner gets the resources that the job asks for."""

PROBE_AT_START: Final = 8
"""How many of a broker's first pods probe the network at their start. The static checks of a preflight use up
to three of them. Then the preflight asks another one for its result."""
ENDED: Final = "SandboxEnded"
MAX_UNANSWERED: Final = 5
"""After this many pods in a row that ended before any pod answered, the broker gives up. Once the first has
ended, the others start together."""
STOPPED: Final = (137, 143)
"""Exit codes of a process that was killed or terminated (SIGKILL, SIGTERM), usually by its node."""
LAST_WORDS: Final = 500
"""Maximum characters from the end of a log that a message repeats."""


@dataclass(frozen=True)
class SandboxKind:
    """Which sandboxes of a job a broker hands out: the job's own, or a suite's."""

    config: JobConfig | EvalConfig
    suite: str | None = None

    @property
    def environment(self) -> EnvironmentSpec:
        """The environment that runs in these sandboxes."""
        if self.suite is None:
            return self.config.spec.environment
        assert isinstance(self.config, EvalConfig)
        return next(each.environment for each in self.config.spec.suites if each.name == self.suite)

    @property
    def runs_code(self) -> bool:
        """Whether code runs on the model's behalf: the agent is a program, or a tool executes code."""
        program = self.suite is not None or self.config.spec.agent.sandboxed is not None
        return program or self.environment.sandbox.runs_code

    def probes_at_start(self, number: int) -> bool:
        """Whether the `number`th pod probes the network in its first second. A few do, for the preflight."""
        if not isinstance(self.config, JobConfig):
            return False
        asked = self.config.spec.preflight
        return bool(asked.episodes) and asked.checks.get("isolated") != "Off" and 0 < number <= PROBE_AT_START

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the pods."""
        labels = names.job_labels(self.config.kind, self.config.name, self.config.uid, names.SANDBOX)
        return labels if self.suite is None else {**labels, names.LABEL_SUITE: self.suite}


@dataclass(frozen=True)
class Platform:
    """The platform's settings for a sandbox pod (`sandbox-template.json`). The job's override them."""

    template: Json
    resources: Json
    image_pull_secrets: list[Json]

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Parse the file that the operator writes."""
        document = json.loads(text)
        return cls(document["template"], document["resources"], document["imagePullSecrets"])


def selector(kind: SandboxKind) -> str:
    """Label selector of these sandboxes, which excludes other sandboxes of the job."""
    suite = f"!{names.LABEL_SUITE}" if kind.suite is None else f"{names.LABEL_SUITE}={kind.suite}"
    return f"{names.LABEL_JOB_UID}={kind.config.uid},{names.LABEL_COMPONENT}={names.SANDBOX},{suite}"


def manifest(kind: SandboxKind, platform: Platform, name: str, number: int = 0) -> Json:
    """The complete pod `name`. `number`: its number among its broker's pods, from 1; 0 without a broker."""
    config = kind.config
    layered = merge({"spec": _wanted(kind, platform, number)}, platform.template)
    layered = merge(layered, kind.environment.sandbox.pod_template or {})
    metadata = layered.get("metadata", {})
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": config.kind,
        "name": config.name,
        "uid": config.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": config.namespace,
            "labels": {**_without_suite(metadata.get("labels") or {}), **kind.labels},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [owner],
        },
        "spec": isolated(layered["spec"], names.child(config.stem, names.SANDBOX)),
    }


def _without_suite(labels: Json) -> Json:
    """Drop the label of a suite, so that a template cannot make a sandbox one of a suite."""
    return {name: value for name, value in labels.items() if name != names.LABEL_SUITE}


def _wanted(kind: SandboxKind, platform: Platform, number: int) -> Json:
    environment = kind.environment
    sandbox = environment.sandbox
    container: Json = {
        "name": CONTAINER,
        "image": environment.image,
        "command": ["python3", "-m", "headway_sandbox.server"],
        # If an image cannot run the server, only the container's log says why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            {"name": names.ENV_ENTRYPOINT, "value": environment.entrypoint},
            {"name": names.ENV_ENVIRONMENT_CONFIG, "value": json.dumps(environment.config or {})},
        ],
        "ports": [{"name": "http", "containerPort": names.PORT_SANDBOX}],
        "resources": resources(platform, sandbox.resources.model_dump() if sandbox.resources else {}),
    }
    if kind.probes_at_start(number):
        container["env"].append({"name": names.ENV_REACH, "value": "1"})
    if environment.image_pull_policy:
        container["imagePullPolicy"] = environment.image_pull_policy
    spec: Json = {"containers": [container]}
    if kind.runs_code:
        spec = _with_runner(container)
    if platform.image_pull_secrets:
        spec["imagePullSecrets"] = platform.image_pull_secrets
    if sandbox.runtime_class_name:
        spec["runtimeClassName"] = sandbox.runtime_class_name
    spec["activeDeadlineSeconds"] = IDLE_SECONDS + sandbox.deadline_seconds
    return spec


def _with_runner(server: Json) -> Json:
    """The server, and the container that runs code, from the same image and with the same limits."""
    socket = {"name": names.ENV_RUNNER, "value": names.RUNNER_SOCKET}
    at = {"name": RUNNER_VOLUME, "mountPath": names.RUNNER_DIR}
    limits = server["resources"]["limits"]
    runner: Json = {
        **{key: server[key] for key in ("image", "imagePullPolicy", "resources") if key in server},
        "name": names.RUNNER,
        "command": ["python3", "-m", "headway_sandbox.runner"],
        "env": [socket],
        "volumeMounts": [{"name": AGENT_VOLUME, "mountPath": names.EPISODE_DIR}, {**at, "readOnly": True}],
    }
    beside = {
        **server,
        "env": [*server["env"], socket],
        "resources": {"requests": {**BESIDE_RUNNER}, "limits": {**limits}},
        "volumeMounts": [at],
    }
    volumes = [
        {"name": AGENT_VOLUME, "emptyDir": {"sizeLimit": limits["ephemeral-storage"]}},
        {"name": RUNNER_VOLUME, "emptyDir": {"sizeLimit": RUNNER_VOLUME_SIZE}},
    ]
    return {"containers": [beside, runner], "volumes": volumes}


def resources(platform: Platform, wish: Json) -> Json:
    """The job's resources over the platform's default. A limit without a request is also the request.

    The platform's default may set lower requests. A server that waits for its episode needs no share of a
    core, but a hard limit of that size would make every start slow.
    """
    default = platform.resources
    limits = {**(default.get("limits") or DEFAULT_RESOURCES)}
    requests = {**limits, **(default.get("requests") or {})}
    asked, limit = wish.get("requests") or {}, wish.get("limits") or {}
    limits |= asked | limit
    requests |= limit | asked
    limits.setdefault("ephemeral-storage", EPHEMERAL_STORAGE)
    requests.setdefault("ephemeral-storage", limits["ephemeral-storage"])
    return {"requests": requests, "limits": limits}


def isolated(spec: Json, account: str) -> Json:
    """`spec` with the settings that isolate the pod. They override whatever it contained."""
    hardened = {
        **spec,
        "restartPolicy": "Never",
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "terminationGracePeriodSeconds": 1,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    hardened.pop("serviceAccount", None)  # the old name of the same field
    for part in ("containers", "initContainers"):
        if part in spec:
            hardened[part] = [bounded(_restricted(container)) for container in spec[part]]
    return hardened


def _restricted(container: Json) -> Json:
    context: Json = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    if container.get("name") == names.RUNNER:
        context |= {"runAsUser": RUNNER_USER, "runAsGroup": RUNNER_USER}
    return {**container, "securityContext": context}


def is_ours(pod: Json, kind: SandboxKind) -> bool:
    """Whether a pod belongs to the job: its controller must be the job, since labels prove nothing."""
    owners = pod.get("metadata", {}).get("ownerReferences") or []
    return any(owner.get("controller") and owner.get("uid") == kind.config.uid for owner in owners)


def address(pod: Json) -> str | None:
    """The pod's address once its container runs."""
    status = pod.get("status", {})
    return status.get("podIP") if status.get("phase") == "Running" else None


def url_of(ip: str) -> str:
    """Base URL of the server in a pod."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{names.PORT_SANDBOX}"


def ended(pod: Json) -> bool:
    """Whether the pod will never serve (again)."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def problem_of(pod: Json) -> Problem | None:
    """Why this pod does not serve, as environment, kubelet or scheduler says; None if nothing is wrong."""
    status = pod.get("status", {})
    # The server's container comes first: the runner ends when the server does, and has no message then.
    for container in sorted(status.get("containerStatuses", []), key=lambda c: c.get("name") != CONTAINER):
        state = container.get("state", {})
        if "terminated" in state:
            return _terminated(state["terminated"])
        waiting = state.get("waiting", {})
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            field = "spec.environment.image" if "Image" in waiting["reason"] else None
            return Problem(reason=waiting["reason"], message=waiting.get("message", ""), field=field)
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Problem(reason="Unschedulable", message=condition.get("message", ""))
    if status.get("phase") == "Failed":
        return Problem(
            reason=status.get("reason", "PodFailed"), message=status.get("message", "the pod failed")
        )
    return None


def _terminated(state: Json) -> Problem:
    ended = exits.parse(state.get("message"))
    code = state.get("exitCode")
    if ended is not None:
        return Problem(
            reason=ended.reason, message=ended.message, field=ended.field, permanent=code == exits.PERMANENT
        )
    reason, last_words = state.get("reason", "Error"), state.get("message", "").strip()
    message = f"the sandbox's process ended ({reason}, exit code {code}) before its episode did"
    return Problem(reason=ENDED, message=f"{message}: {last_words[-LAST_WORDS:]}" if last_words else message)


def failed_by_image(pod: Json) -> bool:
    """Whether a pod ended without an answer probably because of its image. Other pods would end too then."""
    ends = [container.get("state", {}).get("terminated") for container in _containers(pod)]
    codes = [end.get("exitCode") for end in ends if end is not None and not exits.parse(end.get("message"))]
    return any(code not in (0, *STOPPED) for code in codes)


def repeated_failure(problem: Problem) -> Problem:
    """The permanent problem once `MAX_UNANSWERED` pods in a row have ended like that."""
    text = f"{MAX_UNANSWERED} sandboxes in a row ended before any answered; the last: "
    fix = "build it on Headway's sandbox image, with python3 and what the environment imports"
    field = "spec.environment.image"
    return Problem(reason=ENDED, message=f"{text}{problem.message}; {fix}", field=field, permanent=True)


def _containers(pod: Json) -> list[Json]:
    found: list[Json] = pod.get("status", {}).get("containerStatuses") or []
    return [container for container in found if container.get("name", CONTAINER) == CONTAINER]
