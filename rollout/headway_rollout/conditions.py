"""What the coordinator says in `.status.conditions`: pure. The operator says the rest."""

from __future__ import annotations

from collections.abc import Sequence

from headway_api.conditions import Condition, ConditionType, Reason, condition, find, merge
from headway_rollout.engines.router import Router

OWN = frozenset({ConditionType.WEIGHTS_IN_SYNC})
TOLD_MOST = 3
"""Servers whose words a message repeats."""


def current(before: Sequence[Condition], router: Router) -> list[Condition]:
    """The coordinator's conditions, after those it told before; equal to them where nothing changed."""
    said = find(before, ConditionType.WEIGHTS_IN_SYNC)
    stands = said if said is not None and said.status != "Unknown" else _unknown(router)
    return merge([said] if said else [], [weights_in_sync(router) or stands])


def weights_in_sync(router: Router) -> Condition | None:
    """Whether every server holds the weights wanted; None while they merely take them."""
    servers = sorted(router.servers.values(), key=lambda server: server.endpoint.engine)
    failed = [(server.endpoint.engine, server.failure) for server in servers if server.failure]
    if failed:
        unverified = any(failure.reason == "VerificationFailed" for _, failure in failed)
        reason = Reason.VERIFICATION_FAILED if unverified else Reason.UPDATE_FAILED
        text = "; ".join(f"{engine}: {failure.message}" for engine, failure in failed[:TOLD_MOST])
        return condition(ConditionType.WEIGHTS_IN_SYNC, False, reason, text)
    if servers and len(router.in_rotation()) == len(servers):
        # Not the version: the condition would be another at every step.
        text = "every rollout server holds the weights wanted, verified"
        return condition(ConditionType.WEIGHTS_IN_SYNC, True, Reason.SYNCED, text)
    return None


def _unknown(router: Router) -> Condition:
    text = "the learner has not announced weights yet"
    if router.wanted is not None:
        text = "no rollout server holds weights yet"
    return condition(ConditionType.WEIGHTS_IN_SYNC, None, Reason.PENDING, text)
