"""Who the pods are: a service account a role, and the least each must be allowed."""

from __future__ import annotations

from headway_api import names
from headway_operator.plan.context import Context, Json, Wanted

RBAC = "rbac.authorization.k8s.io/v1"


def objects(context: Context, roles: tuple[str, ...]) -> list[Wanted]:
    """Service accounts of `roles`, and roles and bindings of those who speak to the API server.

    Only the coordinator and the broker speak to the API server: the coordinator may write its own job's
    status and nothing else, the broker may manage pods. Learner and rollout servers get no token; they
    have accounts of their own so that a cloud identity (IRSA, Pod Identity) can be given to them. Sandboxes
    have one so that none can: webhooks would give them what the namespace's default account is given.
    """
    account_names = {context.service_account(role) for role in roles}
    own = account_names - {context.spec.service_account_name}
    accounts = [
        Wanted(context.object("v1", "ServiceAccount", name, automountServiceAccountToken=False))
        for name in sorted(own)
    ]
    return [
        *accounts,
        *_grant(context, names.COORDINATOR, [_own_status(context)]),
        *_grant(context, names.BROKER, [MANAGE_PODS]),
    ]


MANAGE_PODS: Json = {
    "apiGroups": [""],
    "resources": ["pods"],
    "verbs": ["create", "delete", "get", "list", "watch"],
}


def _own_status(context: Context) -> Json:
    return {
        "apiGroups": [names.GROUP],
        "resources": [f"{names.PLURALS[context.kind]}/status"],
        "resourceNames": [context.name],
        "verbs": ["patch"],
    }


def _grant(context: Context, role: str, rules: list[Json]) -> list[Wanted]:
    name = context.child(role)
    account = {
        "kind": "ServiceAccount",
        "name": context.service_account(role),
        "namespace": context.namespace,
    }
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return [
        Wanted(context.object(RBAC, "Role", name, role, rules=rules)),
        Wanted(context.object(RBAC, "RoleBinding", name, role, roleRef=reference, subjects=[account])),
    ]
