"""Who may speak to whom: a NetworkPolicy a role, from the moment the job exists.

    sandbox      from coordinator and broker; to nothing, names (DNS) included
    rollout      from coordinator (vLLM's development endpoints can replace the weights)
    broker       from coordinator; scrapers
    coordinator  from learner; scrapers
    learner      from learner

Kubelet probes come from the node, which policies do not hold back. Egress of the other roles is open: the
model hub, the artifact store and the tracking server are wherever the user says. Scrapers are whom the
operator's configuration names (metricsFrom); they reach the port, and with it only what needs no token.
"""

from __future__ import annotations

from headway_api import names
from headway_operator.plan.context import Context, Json, Wanted


def objects(context: Context) -> list[Wanted]:
    """One policy for each role."""
    coordinator, learner = _role(context, names.COORDINATOR), _role(context, names.LEARNER)
    broker, scrapers = _role(context, names.BROKER), list(context.platform.metrics_from)
    return [
        _policy(
            context,
            names.SANDBOX,
            [_allow([coordinator, broker], names.PORT_SANDBOX)],
            isolate_egress=True,
        ),
        _policy(
            context,
            names.ROLLOUT,
            [_allow([coordinator], names.PORT_ENGINE, names.PORT_WEIGHTS)],
        ),
        _policy(context, names.BROKER, [_allow([coordinator, *scrapers], names.PORT_BROKER)]),
        _policy(context, names.COORDINATOR, [_allow([learner, *scrapers], names.PORT_COORDINATOR)]),
        # Collectives open ports of their own choice.
        _policy(context, names.LEARNER, [_allow([learner])]),
    ]


def _role(context: Context, role: str) -> Json:
    return {"podSelector": {"matchLabels": context.selector(role)}}


def _allow(peers: list[Json], *ports: int) -> Json:
    rule: Json = {"from": peers}
    if ports:
        rule["ports"] = [{"protocol": "TCP", "port": port} for port in ports]
    return rule


def _policy(context: Context, role: str, ingress: list[Json], *, isolate_egress: bool = False) -> Wanted:
    spec: Json = {
        "podSelector": {"matchLabels": context.selector(role)},
        "policyTypes": ["Ingress", "Egress"] if isolate_egress else ["Ingress"],
        "ingress": ingress,
    }
    policy = context.object("networking.k8s.io/v1", "NetworkPolicy", context.child(role), role, spec=spec)
    return Wanted(policy)
