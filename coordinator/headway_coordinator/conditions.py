"""The coordinator's conditions in `.status.conditions`. The operator writes the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from headway_api.conditions import Condition, ConditionType, Reason, condition, find, merge
from headway_coordinator.engines.router import ALWAYS_BEHIND, Endpoint, Failure, Router

OF_BUDGET = frozenset({ConditionType.BUDGET_LOW, ConditionType.BUDGET_EXHAUSTED})
OWN = frozenset({ConditionType.WEIGHTS_IN_SYNC, ConditionType.HEALTHY, *OF_BUDGET})
OWN_OF_EVALUATION = frozenset({ConditionType.GATE_PASSED, ConditionType.HEALTHY, *OF_BUDGET})
MAX_SHOWN = 3
"""The most servers that a message quotes."""
PATIENCE_SECONDS = 30.0
"""For this many seconds too few servers may be verified before the condition "in sync" is withdrawn. A new
coordinator has found no server yet, DNS may briefly omit a server, and a check may miss one."""
GRAVEST_FIRST: Final = (
    Reason.VERIFICATION_FAILED,
    Reason.UPDATE_FAILED,
    Reason.UPDATE_TIMED_OUT,
    Reason.SERVER_SILENT,
)


class Conditions:
    """The coordinator's conditions, which follow what it knows of its servers."""

    def __init__(self, previous: Sequence[Condition]) -> None:
        self._conditions = list(previous)
        self._enough_at: float | None = None
        """When enough servers last held verified weights, or no weights were wanted yet, in monotonic
        seconds. None before the first check."""

    def current(self, router: Router, now: float, held_out: Router | None = None) -> list[Condition]:
        """The conditions at `now` (monotonic). They equal the previous ones if nothing changed.

        `held_out` is the router of a server that samples only held-out rows. Its failures count while
        weights are wanted on it.
        """
        if self._enough_at is None or not is_short(router):
            self._enough_at = now
        short = now - self._enough_at
        also = {} if held_out is None or held_out.wanted is None else failures(held_out)
        self._conditions = after(self._conditions, router, short, router.behind(now), also)
        return self._conditions


def after(
    before: Sequence[Condition],
    router: Router,
    short_seconds: float = 0.0,
    behind: Collection[Endpoint] = (),
    held_out: Mapping[str, Failure] | None = None,
) -> list[Condition]:
    """The conditions after `before`, given what the router knows now. Pure.

    `short_seconds`: for how long too few servers have held verified weights.
    `behind`: servers that for too long have held only weights older than the wanted ones.
    `held_out`: the `failures` of a server that samples only held-out rows.
    """
    known = find(before, ConditionType.WEIGHTS_IN_SYNC)
    if known is None:
        return [weights_in_sync(router, behind, held_out) or _unknown(router)]
    overtaken = known.status == "True" and short_seconds > PATIENCE_SECONDS
    unchanged = _unknown(router) if known.status == "Unknown" or overtaken else known
    return merge([known], [weights_in_sync(router, behind, held_out) or unchanged])


def is_short(router: Router) -> bool:
    """Whether fewer servers than the job asks for hold verified weights of any version."""
    return router.wanted is not None and len(router.verified()) < router.replicas


def failures(router: Router) -> dict[str, Failure]:
    """The failures of servers that exist, and of servers that left before they recovered, by address."""
    here = {server.endpoint: server.failure for server in router.servers.values()}
    found = {endpoint.engine: failure for endpoint, failure in here.items() if failure is not None}
    return found | {f"{endpoint.engine} (gone)": failure for endpoint, failure in router.gone.items()}


def weights_in_sync(
    router: Router, behind: Collection[Endpoint] = (), held_out: Mapping[str, Failure] | None = None
) -> Condition | None:
    """Whether as many servers as asked for hold the wanted weights.

    None while servers still load these weights, or while there are too few servers. A server in `behind`
    loads weights again and again and never has them in time.
    """
    failed = {endpoint.engine: ALWAYS_BEHIND for endpoint in behind} | failures(router)
    failed |= {f"{where}, for held-out rows": failure for where, failure in (held_out or {}).items()}
    if failed:
        reasons = {failure.reason for failure in failed.values()}
        text = "; ".join(
            sorted(f"{where}: {failure.message}" for where, failure in failed.items())[:MAX_SHOWN]
        )
        return condition(ConditionType.WEIGHTS_IN_SYNC, False, min(reasons, key=GRAVEST_FIRST.index), text)
    if router.met and not is_short(router):
        # The text names no version and no number. Otherwise the condition would change at every step and
        # every change of scale.
        text = "every rollout server holds the wanted weights, verified"
        return condition(ConditionType.WEIGHTS_IN_SYNC, True, Reason.SYNCED, text)
    return None


def _unknown(router: Router) -> Condition:
    text = "the learner has not announced weights yet"
    if router.wanted is not None:
        problems = [f"{s.endpoint.engine}: {s.problem}" for s in router.servers.values() if s.problem]
        verified = f"{len(router.verified())} of {router.replicas} rollout servers hold verified weights"
        text = "; ".join([verified, *sorted(problems)[:MAX_SHOWN]])
    return condition(ConditionType.WEIGHTS_IN_SYNC, None, Reason.PENDING, text)
