"""Which pods may connect to which: one NetworkPolicy a role, from the moment the job exists.

    sandbox      from coordinator and broker; to nothing, DNS included
    rollout      from coordinator (vLLM's development endpoints can replace the weights); scrapers, on a port
                 that serves only vLLM's metrics
    judge        from coordinator, on the port for its requests
    broker       from coordinator; scrapers
    coordinator  from learner, if there is one; scrapers
    learner      from learner

With spec.learner.weights.backend nccl, rollout servers read weights from the learner's memory. They reach the
learner's port for these requests. Both sides reach the ports that torch.distributed lets the system choose,
which never include the ports named in headway_api.

The coordinator's gateway, where an agent requests its turns, has its own port. spec.agent decides who reaches
it. A client also needs the token of a running episode.

    builtin      nobody: the agent is a part of the coordinator
    http         anybody: the agent may be of another team, another cluster or another cloud
    sandboxed    sandbox; it then reaches only the gateway, by address, since DNS stays closed

Sandboxes of suites are sandboxes, and reach the gateway whatever spec.agent is: their program requests its
turns there. They reach nothing else. The suites' brokers have the same policy as the job's own broker.

Kubelet probes come from the node, which policies do not block. Egress of the other roles is open: users
choose where the model hub, the artifact store and the tracking server are. Scrapers are the peers that the
operator's configuration names (metricsFrom). They can open the port, but without a token they can read only
what needs none.
"""

from __future__ import annotations

from headway_api import names
from headway_api.document import Json
from headway_operator.plan.context import Context, Wanted


def manifests(context: Context, roles: tuple[str, ...]) -> list[Wanted]:
    """One policy for each of the job's roles."""
    coordinator, broker = _role(context, names.COORDINATOR), _role(context, names.BROKER)
    learners = [_role(context, names.LEARNER)] if names.LEARNER in roles else []
    scrapers = list(context.platform.metrics_from)
    brokers = [broker, *([_role(context, names.SUITE_BROKER)] if context.suites else [])]
    inward, outward = _gateway(context)
    to_learner, to_rollout = _weights(context)
    policies = [
        _policy(
            context,
            names.SANDBOX,
            [_allow([coordinator, *brokers], names.PORT_SANDBOX)],
            egress=outward,
        ),
        _policy(
            context,
            names.ROLLOUT,
            [
                _allow([coordinator], names.PORT_ENGINE, names.PORT_WEIGHTS),
                _allow([coordinator, *scrapers], names.PORT_ENGINE_METRICS),
                *to_rollout,
            ],
        ),
        _policy(context, names.BROKER, [_allow([coordinator, *scrapers], names.PORT_BROKER)]),
        _policy(
            context,
            names.COORDINATOR,
            [*_allow_some([*learners, *scrapers], names.PORT_COORDINATOR), *inward],
        ),
    ]
    if context.suites:
        from_coordinator = [_allow([coordinator, *scrapers], names.PORT_BROKER)]
        policies += [_policy(context, names.SUITE_BROKER, from_coordinator), _of_suites(context)]
    if context.serves_judges:
        policies.append(_policy(context, names.JUDGE, [_allow([coordinator], names.PORT_ENGINE)]))
    if learners:
        # Collectives choose their own ports, so the rule names none.
        policies.append(_policy(context, names.LEARNER, [_allow(learners), *to_learner]))
    return policies


def _gateway(context: Context) -> tuple[list[Json], list[Json]]:
    """Rules that the gateway's port adds to the coordinator's ingress and to the sandboxes' egress."""
    if context.spec.agent.http:
        return [_ports(names.PORT_GATEWAY)], []
    if context.spec.agent.sandboxed:
        return [_allow([_role(context, names.SANDBOX)], names.PORT_GATEWAY)], [_to_gateway(context)]
    if context.suites:
        return [_allow([{"podSelector": _sandboxes_of_suites(context)}], names.PORT_GATEWAY)], []
    return [], []


def _of_suites(context: Context) -> Wanted:
    """The additional policy by which suites' sandboxes reach the gateway."""
    spec = {
        "podSelector": _sandboxes_of_suites(context),
        "policyTypes": ["Egress"],
        "egress": [_to_gateway(context)],
    }
    name = f"{context.stem}-suites"
    return Wanted(context.object("networking.k8s.io/v1", "NetworkPolicy", name, names.SANDBOX, spec=spec))


def _sandboxes_of_suites(context: Context) -> Json:
    having = {"key": names.LABEL_SUITE, "operator": "Exists"}
    return {"matchLabels": context.selector(names.SANDBOX), "matchExpressions": [having]}


def _to_gateway(context: Context) -> Json:
    return {"to": [_role(context, names.COORDINATOR)], **_ports(names.PORT_GATEWAY)}


def _weights(context: Context) -> tuple[list[Json], list[Json]]:
    """Rules that weights from the learner's memory add to the ingress of learner and rollout servers.

    Either side may open a connection.
    """
    if not context.hands_over_weights:
        return [], []
    first, last = names.SYSTEM_PORTS
    chosen = {"protocol": "TCP", "port": first, "endPort": last}
    asked = {"protocol": "TCP", "port": names.PORT_DIRECT}
    servers, learner = _role(context, names.ROLLOUT), _role(context, names.LEARNER)
    return [{"from": [servers], "ports": [asked, chosen]}], [{"from": [learner], "ports": [chosen]}]


def _role(context: Context, role: str) -> Json:
    return {"podSelector": {"matchLabels": context.selector(role)}}


def _allow(peers: list[Json], *ports: int) -> Json:
    return {"from": peers, **_ports(*ports)}


def _allow_some(peers: list[Json], *ports: int) -> list[Json]:
    """A rule for `peers`, or none if there are no peers: a rule without peers would admit everybody."""
    return [_allow(peers, *ports)] if peers else []


def _ports(*ports: int) -> Json:
    return {"ports": [{"protocol": "TCP", "port": port} for port in ports]} if ports else {}


def _policy(context: Context, role: str, ingress: list[Json], *, egress: list[Json] | None = None) -> Wanted:
    """The policy of a role. `egress` lists everything that it reaches; None leaves egress open."""
    spec: Json = {
        "podSelector": {"matchLabels": context.selector(role)},
        "policyTypes": ["Ingress"] if egress is None else ["Ingress", "Egress"],
        "ingress": ingress,
    }
    if egress:
        spec["egress"] = egress
    policy = context.object("networking.k8s.io/v1", "NetworkPolicy", context.child(role), role, spec=spec)
    return Wanted(policy)
