"""The learner: an indexed Job with one pod a node, and a headless Service.

The pods find one another by stable names. torch.distributed rendezvouses at the pod of rank 0.
"""

from __future__ import annotations

from headway_api import names
from headway_api.document import Json
from headway_operator.plan import failures, pods
from headway_operator.plan.context import Context, Mode, Wanted

INDEX_ANNOTATION = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def manifests(context: Context) -> list[Wanted]:
    """Headless Service and indexed Job."""
    role = names.LEARNER
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": context.selector(role),
        "ports": [{"name": name, "port": port} for name, port in _met_at(context).items()],
    }
    return [
        Wanted(context.object("v1", "Service", context.child(role), role, spec=service)),
        Wanted(context.object("batch/v1", "Job", context.child(role), role, spec=_job(context)), Mode.PIN),
    ]


def _job(context: Context) -> Json:
    nodes = context.training.spec.learner.nodes
    template = pods.pod_template(context, _process(context))
    template["spec"]["subdomain"] = context.child(names.LEARNER)
    # Read the grace period from the final template, since the platform's fragment may change it.
    grace = {"name": "GRACE_SECONDS", "value": str(template["spec"]["terminationGracePeriodSeconds"])}
    (container,) = [c for c in template["spec"]["containers"] if c["name"] == names.LEARNER]
    container["env"] = [*container["env"], grace]
    return {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        # When one pod fails, the others do too. Each index counts a failure of the learner at most once, so
        # the learner has no restarts left when the first index has none. Kubernetes also backs off by index:
        # 10 s after the first failure, however many nodes failed with it.
        "backoffLimitPerIndex": context.spec.failure_policy.max_restarts,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": failures.pod_failure_policy(names.LEARNER, context.spec.failure_policy.rules),
        "template": template,
    }


def _met_at(context: Context) -> dict[str, int]:
    """Ports on which other pods reach rank 0."""
    ports = {"torch": names.PORT_TORCH}
    return ports | {"weights": names.PORT_DIRECT} if context.hands_over_weights else ports


def _process(context: Context) -> pods.Process:
    learner = context.training.spec.learner
    # Ranks first find one another and load a model. pendingDeadlineSeconds limits that time, not the probe.
    attempts = context.spec.pending_deadline_seconds // 5 + 1
    return pods.Process(
        role=names.LEARNER,
        module="headway_trainer.launch",
        image=context.platform.images.learner,
        ports={"http": names.PORT_LEARNER, **_met_at(context)},
        env={
            "MASTER_ADDR": names.learner_host(context.name, context.namespace),
            "MASTER_PORT": str(names.PORT_TORCH),
            "NNODES": str(learner.nodes),
            "NPROC": str(learner.processes_per_node),
        },
        env_from_pod={"NODE_RANK": INDEX_ANNOTATION},
        probes={
            "startupProbe": pods.http_probe("/healthz", "http", period=5, failures=attempts),
            "readinessProbe": pods.http_probe("/readyz", "http", period=2, failures=3),
            "livenessProbe": pods.http_probe("/healthz", "http", period=30, failures=4, timeout=10),
        },
        store=True,
        shm=True,
        resources=learner.resources,
        accelerators=learner.processes_per_node,
        pod_template=learner.pod_template,
        costly_to_move=True,
        restart_policy="Never",
        grace_seconds=learner.termination_grace_period_seconds,
    )
