"""The pods' identities: one service account a role, with the fewest rights that it needs."""

from __future__ import annotations

from typing import Final

from headway_api import names
from headway_api.document import Json
from headway_operator.plan.context import Context, Wanted

GROUP: Final = "rbac.authorization.k8s.io"
LONGEST: Final = 253
"""Maximum characters of an account's name."""


def manifests(context: Context, roles: tuple[str, ...]) -> list[Wanted]:
    """Service accounts of `roles`, and bindings of those that use the API server.

    Only the coordinator and the broker use the API server. The coordinator may write the status of jobs of
    its kind, and the broker may manage pods. The chart's admission policies restrict the coordinator to its
    own job, and the broker to its own sandboxes. Learner and rollout servers get no token. They have accounts
    of their own so that they can have a cloud identity (IRSA, Pod Identity). Sandboxes have an account so
    that they get no identity. Otherwise webhooks would give them that of the namespace's default account.
    """
    account_names = {context.service_account(role) for role in roles}
    own = account_names - {context.spec.service_account_name}
    accounts = [
        Wanted(context.object("v1", "ServiceAccount", name, automountServiceAccountToken=False))
        for name in sorted(own)
    ]
    coordinators = f"coordinator-{names.PLURALS[context.kind]}"
    return [
        *accounts,
        _bound(context, names.COORDINATOR, coordinators, []),
        _bound(context, names.BROKER, "broker", _proofs(context)),
    ]


def _proofs(context: Context) -> list[str]:
    """Names of accounts that are never created. Each has the job's uid and a RuntimeClass of its sandboxes.

    The chart's admission policy checks that such a name is bound to the broker's role. If a RuntimeClass
    makes the name too long, the name has only the uid, and the class is not enforced.
    """
    fixed = (context.platform.role_templates.get(names.SANDBOX, {}).get("spec") or {}).get("runtimeClassName")
    asked = [context.spec.environment.sandbox, *(suite.sandbox for suite in context.suites)]
    classes = {fixed or sandbox.runtime_class_name or "" for sandbox in asked}
    proofs = {each: names.broker_of(context.stem, context.uid, each) for each in classes}
    plain = names.broker_of(context.stem, context.uid)
    return sorted({proof if len(proof) <= LONGEST else plain for proof in proofs.values()})


def _bound(context: Context, role: str, rights: str, proofs: list[str]) -> Wanted:
    """Bind a role's account to a role of the chart, only in this namespace.

    The binding has another name than the role's other objects. Earlier operators used that name for a binding
    to roles of their own, and the role of a binding cannot be changed.
    """
    fixed = context.platform.job_roles
    subjects: list[Json] = [
        {"kind": "ServiceAccount", "name": name, "namespace": context.namespace}
        for name in (context.service_account(role), *proofs)
    ]
    reference = {"apiGroup": GROUP, "kind": fixed.kind, "name": f"{fixed.prefix}-{rights}"}
    name = f"{context.child(role)}-rights"
    binding = context.object(f"{GROUP}/v1", "RoleBinding", name, role, roleRef=reference, subjects=subjects)
    return Wanted(binding)
