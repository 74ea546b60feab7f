"""The rollout servers: a Deployment, since they are alike and replaceable, and a headless Service.

The Service is headless so that it lists the ready servers, since the coordinator talks to each of them.
"""

from __future__ import annotations

from typing import Final

from headway_api import names
from headway_api.spec.training import RLTrainingJobSpec
from headway_operator.plan import pods
from headway_operator.plan.context import Context, Mode, Wanted

STARTUP_PERIOD: Final = 3
REPLACED: Final = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
"""Update strategy of a Deployment of servers. It stops a server before it starts another, so it needs no
additional accelerators."""


def of_training(context: Context) -> list[Wanted]:
    """The servers of an RLTrainingJob: those that sample for training, and one for held-out rows if the spec
    asks for it."""
    if not context.training.spec.has_validation_server:
        return manifests(context)
    return manifests(context, names.TRAINING_SET) + manifests(context, names.VALIDATION_SET)


def of_preflight(context: Context) -> list[Wanted]:
    """One of the servers that sample for training, before a learner exists. It stays when more are added."""
    spec = context.training.spec
    made = manifests(context, names.TRAINING_SET if spec.has_validation_server else None)
    for item in made:
        if item.body["kind"] == "Deployment":
            item.body["spec"]["replicas"] = 1
    return made


def scaled(context: Context) -> dict[str, str]:
    """Labels of the servers that spec.rollout.replicas counts."""
    spec = context.spec
    has_another = isinstance(spec, RLTrainingJobSpec) and spec.has_validation_server
    return context.selector(names.ROLLOUT) | _labels(names.TRAINING_SET if has_another else None)


def manifests(context: Context, server_set: int | str | None = None) -> list[Wanted]:
    """Headless Service and Deployment; for one set of servers if the job has several."""
    role, labels = names.ROLLOUT, _labels(server_set)
    name = _name(context, server_set)
    selector = context.selector(role) | labels
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": False,
        "selector": selector,
        "ports": [
            {"name": "engine", "port": names.PORT_ENGINE},
            {"name": "weights", "port": names.PORT_WEIGHTS},
        ],
    }
    deployment = {
        "replicas": 1 if server_set == names.VALIDATION_SET else context.spec.rollout.replicas,
        "strategy": REPLACED,
        "selector": {"matchLabels": selector},
        "template": pods.pod_template(context, process(context, server_set)),
    }
    made = [
        Wanted(context.object("v1", "Service", name, role, spec=service)),
        Wanted(context.object("apps/v1", "Deployment", name, role, spec=deployment), Mode.PIN),
    ]
    for item in made:
        item.body["metadata"]["labels"] |= labels
    return made


def _name(context: Context, server_set: int | str | None) -> str:
    if server_set is None or server_set == names.TRAINING_SET:
        return context.child(names.ROLLOUT)
    return names.server_set(context.stem, server_set)


def _labels(server_set: int | str | None) -> dict[str, str]:
    return {} if server_set is None else {names.LABEL_SERVER_SET: str(server_set)}


def process(context: Context, server_set: int | str | None = None) -> pods.Process:
    """A rollout server."""
    rollout = context.spec.rollout
    # Loading a model takes minutes. The job's pendingDeadlineSeconds limits that time, not the probe.
    attempts = context.spec.pending_deadline_seconds // STARTUP_PERIOD + 1
    return pods.Process(
        role=names.ROLLOUT,
        module="headway_rollout",
        labels=_labels(server_set),
        env={names.ENV_SERVER_SET: str(server_set)} if isinstance(server_set, int) else {},
        image=context.platform.images.rollout,
        ports={
            "engine": names.PORT_ENGINE,
            "weights": names.PORT_WEIGHTS,
            "metrics": names.PORT_ENGINE_METRICS,
        },
        probes={
            "startupProbe": pods.http_probe("/healthz", "weights", period=STARTUP_PERIOD, failures=attempts),
            "readinessProbe": pods.http_probe("/readyz", "weights", period=2, failures=3),
            "livenessProbe": pods.http_probe("/healthz", "weights", period=10, failures=12, timeout=10),
        },
        store=True,
        shm=True,
        resources=rollout.resources,
        accelerators=rollout.engine.tensor_parallel_size,
        pod_template=rollout.pod_template,
    )
