"""Who the pods are: a service account a role, and the least each must be allowed."""

from __future__ import annotations

from typing import Final

from headway_api import names
from headway_api.document import Json
from headway_operator.plan.context import Context, Wanted

GROUP: Final = "rbac.authorization.k8s.io"
LONGEST: Final = 253
"""Characters of an account's name."""


def manifests(context: Context, roles: tuple[str, ...]) -> list[Wanted]:
    """Service accounts of `roles`, and bindings of those who speak to the API server.

    Only the coordinator and the broker speak to the API server: the coordinator may write the status of jobs
    of its kind, the broker may manage pods. The chart's admission policies hold the one to its own job, the
    other to its own sandboxes. Learner and rollout servers get no token; they
    have accounts of their own so that a cloud identity (IRSA, Pod Identity) can be given to them. Sandboxes
    have one so that none can: webhooks would give them what the namespace's default account is given.
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
    """Names that stand for the job's uid, one for each RuntimeClass that its sandboxes ask for.

    A class whose name is too long for that is not held to.
    """
    fixed = (context.platform.role_templates.get(names.SANDBOX, {}).get("spec") or {}).get("runtimeClassName")
    asked = [context.spec.environment.sandbox, *(suite.sandbox for suite in context.suites)]
    classes = {fixed or sandbox.runtime_class_name or "" for sandbox in asked}
    proofs = {each: names.broker_of(context.stem, context.uid, each) for each in classes}
    plain = names.broker_of(context.stem, context.uid)
    return sorted({proof if len(proof) <= LONGEST else plain for proof in proofs.values()})


def _bound(context: Context, role: str, rights: str, proofs: list[str]) -> Wanted:
    """What a role's account may do: a role of the chart, in this namespace alone.

    The binding is not named like the role's other objects: so it was when operators made roles of their own,
    and what a binding refers to cannot be changed.
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
