"""The broker hands out sandbox pods. It is a Deployment, since it never ends by itself and stores nothing.

Each suite of an evaluation has its own broker, for sandboxes with the suite's image. It differs from the
job's broker in name, component and one label, so neither Service selects the other's pod.
"""

from __future__ import annotations

from headway_api import names
from headway_operator.plan import pods
from headway_operator.plan.context import Context, Mode, Wanted


def manifests(context: Context) -> list[Wanted]:
    """Services and Deployments of the job's broker and of each suite's broker."""
    made = _manifests(context, context.child(names.BROKER), names.BROKER)
    for number, suite in enumerate(context.suites, 1):
        name = names.suite_broker(context.stem, number)
        made += _manifests(context, name, names.SUITE_BROKER, {names.LABEL_SUITE: suite.name})
    return made


def _manifests(
    context: Context, name: str, component: str, labels: dict[str, str] | None = None
) -> list[Wanted]:
    labels = labels or {}
    selector = context.selector(component) | labels
    service = {
        "selector": selector,
        "ports": [{"name": "http", "port": names.PORT_BROKER, "targetPort": "http"}],
    }
    deployment = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector},
        "template": pods.pod_template(context, _process(context, component, labels)),
    }
    made = [
        Wanted(context.object("v1", "Service", name, component, spec=service)),
        Wanted(context.object("apps/v1", "Deployment", name, component, spec=deployment), Mode.PIN),
    ]
    for item in made:
        item.body["metadata"]["labels"] |= labels
    return made


def _process(context: Context, component: str, labels: dict[str, str]) -> pods.Process:
    suite = labels.get(names.LABEL_SUITE)
    return pods.Process(
        role=names.BROKER,
        labels=labels if suite is None else {names.LABEL_COMPONENT: component, **labels},
        env={} if suite is None else {names.ENV_SUITE: suite},
        module="headway_sandbox.broker",
        image=context.platform.images.broker,
        ports={"http": names.PORT_BROKER},
        probes={
            "readinessProbe": pods.http_probe("/readyz", "http", period=2, failures=3),
            "livenessProbe": pods.http_probe("/healthz", "http", period=10, failures=12, timeout=10),
        },
        api_token=True,
    )
