"""The broker: hands out sandbox pods; a Deployment, for it never ends by itself and holds nothing."""

from __future__ import annotations

from headway_api import names
from headway_operator.plan import pods
from headway_operator.plan.context import Context, Mode, Wanted


def objects(context: Context) -> list[Wanted]:
    """Service and Deployment."""
    role = names.BROKER
    service = {
        "selector": context.selector(role),
        "ports": [{"name": "http", "port": names.PORT_BROKER, "targetPort": "http"}],
    }
    deployment = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": context.selector(role)},
        "template": pods.pod_template(context, _process(context)),
    }
    return [
        Wanted(context.object("v1", "Service", context.child(role), role, spec=service)),
        Wanted(context.object("apps/v1", "Deployment", context.child(role), role, spec=deployment), Mode.PIN),
    ]


def _process(context: Context) -> pods.Process:
    return pods.Process(
        role=names.BROKER,
        module="headway_sandbox.broker",
        image=context.platform.images.broker,
        ports={"http": names.PORT_BROKER},
        probes={
            "readinessProbe": pods.http_probe("/readyz", "http", period=2, failures=3),
            "livenessProbe": pods.http_probe("/healthz", "http", period=10, failures=12, timeout=10),
        },
        api_token=True,
    )
