"""Shares a namespace's budget among its jobs. Pure.

    need     what a job must have to continue. It is granted in full or not at all, first to the
             jobs with the smallest grants
    wish     what a job would use next. The rest of the budget is shared by max-min fairness: a job gets more
             than another job only if the other wished for no more
    end      an ended job is charged its usage if its coordinator ended in order, else its whole grant
    fact     usage beyond a job's grant counts too, and is never granted to another job

A grant never shrinks, because the job's coordinator may have reserved all of it. Grants and the usage of
ended jobs together are at most the limit, unless the limit was lowered or usage exceeded it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation
from typing import Any, Final

from pydantic.alias_generators import to_camel

from headway_api import names
from headway_api.conditions import TERMINAL, Condition, ConditionType, Reason, condition, merge
from headway_api.document import Json
from headway_api.grants import MAX_JOBS, NAMESPACE, Grant, GrantedJob, Part, RLBudgetStatus, SharedLimit
from headway_api.prices import shown
from headway_api.spec.budget import RLBudget
from headway_api.spec.lifecycle import USD, TokenBudget, limits_of

STEPS: Final = {True: Decimal("0.0001"), False: Decimal(1)}
"""Smallest amount that is granted: in US dollars for the key True, in tokens for False."""
LOW: Final = Decimal("0.2")
MAX_NAMED: Final = 8
"""Maximum jobs that a message names."""
NOTHING: Final = Decimal(0)
MAX_AMOUNT: Final = Decimal(10**15)
"""Upper bound of any reported amount."""
Amounts = Mapping[str, Decimal]
"""Amounts by the name of the limit."""


@dataclass(frozen=True)
class Claim:
    """A job of the namespace, with what it has used and what it asks for."""

    uid: str
    kind: str
    name: str
    created: str
    """Creation time as the API server writes it. It decides the order of jobs that are equal otherwise."""
    ended: bool = False
    """The job has ended, and its pods are gone."""
    closed: bool = False
    """The job's coordinator has ended in order, so `used` is final."""
    spent: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    """What the job has spent, plus what its running work may use beyond that."""
    needed: Amounts = field(default_factory=dict)
    wished: Amounts = field(default_factory=dict)
    allowed: Amounts = field(default_factory=dict)
    """The grant in the job's status, from whichever RLBudget it came."""
    not_reporting: bool = False
    """The job ran before the budget bounded it, and has not reported its usage yet."""
    bill: Amounts = field(default_factory=dict)
    """Usage in its status, whether or not a budget bounds the job."""


@dataclass(frozen=True)
class Share:
    """What one job that has not ended may use."""

    claim: Claim
    granted: Amounts
    refused: Amounts = field(default_factory=dict)
    """Limit -> the need that could not be granted."""


@dataclass(frozen=True)
class Shared:
    """The result of sharing a budget."""

    ended: Amounts
    """Usage charged to ended jobs."""
    ended_jobs: int
    shares: Sequence[Share] = ()
    not_reporting: Sequence[Claim] = ()
    """Jobs that have not reported their usage. Nothing is granted to any job until they do."""
    beyond: int = 0
    """Number of jobs beyond `MAX_JOBS`, which get no share."""

    def left(self, limits: Amounts) -> dict[str, Decimal]:
        """What is neither used by ended jobs nor granted; below 0 if usage exceeded the limit."""
        return {name: maximum - self.ended[name] - self._granted(name) for name, maximum in limits.items()}

    def _granted(self, name: str) -> Decimal:
        return sum((share.granted[name] for share in self.shares), NOTHING)


def claim(job: Json) -> Claim:
    """What a stored job has used and asks for. A suspended, paused, ended or deleted job asks for nothing."""
    metadata, spec, status = job["metadata"], _block(job.get("spec")), _block(job.get("status"))
    budget, grant = _block(status.get("budget")), _block(status.get("grant"))
    limits = [limit for limit in _list(budget.get("limits")) if str(limit.get("name")).startswith(NAMESPACE)]
    gone = has_ended(job) or metadata.get("deletionTimestamp")
    asks = not (spec.get("suspend") is True or _is_paused(status) or gone)
    spent, reserved = _amounts(limits, "spent"), _amounts(limits, "reserved")
    return Claim(
        uid=metadata["uid"],
        kind=job["kind"],
        name=metadata["name"],
        created=str(metadata.get("creationTimestamp", "")),
        ended=is_over(job),
        closed=budget.get("closed") is True,
        spent=spent,
        used={name: much + reserved.get(name, NOTHING) for name, much in spent.items()},
        needed=_amounts(limits, "needed") if asks else {},
        wished=_amounts(limits, "wished") if asks else {},
        allowed={str(part.get("name")): _amount(part.get("granted")) for part in _list(grant.get("parts"))},
        not_reporting=_is_not_reporting(status, grant, spent),
        bill=_bill(_block(status.get("usage"))),
    )


def is_over(job: Json) -> bool:
    """Whether a stored job and its coordinator have ended: its pods are gone, and its status is final."""
    return has_ended(job) and names.FINALIZER_TEARDOWN not in (job["metadata"].get("finalizers") or [])


def has_ended(job: Json) -> bool:
    """Whether a stored job has ended, successfully or not."""
    return any(
        known.get("type") in TERMINAL and known.get("status") == "True"
        for known in _list(_block(job.get("status")).get("conditions"))
    )


def share(limits: Amounts, before: RLBudgetStatus, claims: Iterable[Claim]) -> Shared:
    """Share limits among the namespace's jobs, starting from the shares in `before`.

    An ended job that `before` does not list is ignored: it ended before the budget existed, or is already
    counted.
    """
    jobs = {one.uid: one for one in claims}
    had = {job.uid: _granted(job, limits) for job in before.jobs}
    ended = {name: _amount(_ended(before, name)) for name in limits}
    over = [uid for uid in had if uid not in jobs or jobs[uid].ended]  # their coordinators are gone too
    for uid in over:
        for name, much in _last(jobs.get(uid), had[uid]).items():
            ended[name] += much
    living = sorted((one for one in jobs.values() if not one.ended), key=lambda one: (one.created, one.uid))
    known = [one for one in living if one.uid in had]
    new = [one for one in living if one.uid not in had]
    taken, beyond = [*known, *new][:MAX_JOBS], max(0, len(living) - MAX_JOBS)
    shares = [Share(one, _starting_amounts(one, had.get(one.uid), limits)) for one in taken]
    not_reporting = [one for one in taken if one.not_reporting]
    shared = Shared(ended, before.ended_jobs + len(over), shares, not_reporting, beyond)
    return shared if not_reporting else _grant_wished(_grant_needed(shared, limits), limits)


def _starting_amounts(one: Claim, had: Amounts | None, limits: Amounts) -> dict[str, Decimal]:
    """What a job has before this round: the larger of its grant and its usage, by whichever account.

    A job that the budget does not know may have a grant from an earlier budget.
    """
    nothing = dict.fromkeys(limits, NOTHING)
    found = _at_least(nothing if had is None else had, one.spent)
    found = _at_least(found, {name: much for name, much in one.bill.items() if name not in one.spent})
    return found if had is not None else _at_least(_at_least(found, one.used), one.allowed)


def _grant_needed(shared: Shared, limits: Amounts) -> Shared:
    left, found = shared.left(limits), {}
    for one in sorted(shared.shares, key=lambda each: _portion(each.granted, limits)):
        needs = _at_least(one.granted, one.claim.needed)
        more = {name: needs[name] - one.granted[name] for name in limits}
        if refused := {name: needs[name] for name, much in more.items() if much > max(left[name], NOTHING)}:
            found[one.claim.uid] = replace(one, refused=refused)
            continue
        for name, much in more.items():
            left[name] -= much
        found[one.claim.uid] = replace(one, granted=needs)
    return replace(shared, shares=[found[each.claim.uid] for each in shared.shares])


def _grant_wished(shared: Shared, limits: Amounts) -> Shared:
    left, given = shared.left(limits), {each.claim.uid: dict(each.granted) for each in shared.shares}
    for name in limits:
        wished = {
            each.claim.uid: (each.granted[name], _step(name, each.claim.wished.get(name, NOTHING)))
            for each in shared.shares
            if not each.refused
        }
        for uid, level in max_min_levels(wished, left[name], STEPS[name == USD]).items():
            given[uid][name] = level
    return replace(shared, shares=[replace(each, granted=given[each.claim.uid]) for each in shared.shares])


def max_min_levels(
    wished: Mapping[str, tuple[Decimal, Decimal]], left: Decimal, step: Decimal
) -> dict[str, Decimal]:
    """Distribute what is left: raise the lowest levels first, none above its wish. Returns the levels.

    Args:
        wished: who -> its current level, and the level it wishes for.
        left: the amount to distribute.
        step: a level that stays below its wish rises by whole multiples of this.
    """
    rising = {who: (now, wish) for who, (now, wish) in wished.items() if wish > now}
    levels = {who: now for who, (now, _) in rising.items()}
    while rising and left > 0:
        lowest = min(levels[who] for who in rising)
        lifted = [who for who in rising if levels[who] == lowest]
        next_levels = [levels[who] for who in rising if levels[who] > lowest]
        target = min([*next_levels, *(rising[who][1] for who in lifted)])
        each = (left / len(lifted)).quantize(step, ROUND_FLOOR)
        if each < target - lowest:
            for who in lifted:
                levels[who] += each
            break
        for who in lifted:
            levels[who] = target
        left -= (target - lowest) * len(lifted)
        rising = {who: pair for who, pair in rising.items() if levels[who] < pair[1]}
    return levels


def status(budget: RLBudget, shared: Shared) -> RLBudgetStatus:
    """The status of an RLBudget. Unchanged conditions keep their transition times."""
    limits = limits_of(budget.spec)
    left = shared.left(limits)
    spent = {
        name: shared.ended[name]
        + sum((each.claim.spent.get(name, NOTHING) for each in shared.shares), NOTHING)
        for name in limits
    }
    generation = budget.metadata.generation
    fresh = [
        each.model_copy(update={"observed_generation": generation})
        for each in (_ready(shared), _low(limits, spent), _exhausted(shared, limits, left))
    ]
    return RLBudgetStatus(
        observed_generation=generation,
        conditions=merge(budget.status.conditions, fresh),
        limits=[
            SharedLimit(
                name=name,
                limit=_text(name, maximum),
                ended=_text(name, shared.ended[name]),
                granted=_text(name, maximum - shared.ended[name] - left[name]),
                spent=_text(name, spent[name]),
                left=_text(name, left[name]),
            )
            for name, maximum in limits.items()
        ],
        jobs=[_granted_job(each) for each in shared.shares],
        ended_jobs=shared.ended_jobs,
    )


def of_job(budget: RLBudget, uid: str, before: Grant | None, *, begun: bool) -> Grant:
    """What a budget lets a job use. If it has no entry for the job or a limit, the job's status applies.

    Args:
        before: the grant in the job's status.
        begun: whether the job may have used something.
    """
    known = next((job for job in budget.status.jobs if job.uid == uid), None)
    parts = {part.name: part for part in known.parts} if known is not None else {}
    before_parts = {part.name: part for part in before.parts} if before is not None else {}
    found = []
    for name in limits_of(budget.spec):
        late = before_parts[name].late if name in before_parts else begun or None
        part = parts.get(name) or before_parts.get(name) or Part(name=name, granted="0")
        if name in before_parts and _amount(before_parts[name].granted) > _amount(part.granted):
            # This view of the budget is older than the grant. Keep what a coordinator may have used.
            part = part.model_copy(update={"granted": before_parts[name].granted})
        found.append(part.model_copy(update={"late": late}))
    return Grant(parts=found)


def granted(grant: Grant | None, name: str) -> Decimal | None:
    """How much of a limit a job may use; None if no RLBudget bounds it."""
    found = next((part for part in grant.parts if part.name == name), None) if grant is not None else None
    return None if found is None else _amount(found.granted)


def _granted_job(one: Share) -> GrantedJob:
    return GrantedJob(
        uid=one.claim.uid,
        kind=one.claim.kind,
        name=one.claim.name,
        parts=[
            Part(
                name=name,
                granted=_text(name, much),
                refused=_text(name, one.refused[name]) if name in one.refused else None,
            )
            for name, much in one.granted.items()
        ],
    )


def _ready(shared: Shared) -> Condition:
    if shared.not_reporting:
        text = "nothing is granted until these jobs report their usage: "
        text += _listed([one.name for one in shared.not_reporting])
        text += "; suspend or delete a job that does not report"
        return condition(ConditionType.READY, False, Reason.JOBS_NOT_REPORTING, text)
    if shared.beyond:
        text = f"{shared.beyond} jobs wait, because {MAX_JOBS} already share the budget; end some"
        return condition(ConditionType.READY, False, Reason.TOO_MANY_JOBS, text)
    return condition(ConditionType.READY, True, Reason.RECONCILED, "grants match the needs of the jobs")


def _low(limits: Amounts, spent: Amounts) -> Condition:
    low = [name for name, maximum in limits.items() if maximum - spent[name] < LOW * maximum]
    if not low:
        text = "a fifth of every limit or more is left"
        return condition(ConditionType.BUDGET_LOW, False, Reason.BUDGET_LEFT, text)
    text = "; ".join(f"less than a fifth of spec.{name} is left" for name in low)
    return condition(ConditionType.BUDGET_LOW, True, Reason.BUDGET_LOW, text)


def _exhausted(shared: Shared, limits: Amounts, left: Amounts) -> Condition:
    refused = [each for each in shared.shares if each.refused]
    if not refused:
        text = "every job has the budget to continue"
        return condition(ConditionType.BUDGET_EXHAUSTED, False, Reason.BUDGET_LEFT, text)
    sentences = []
    for name, maximum in limits.items():
        lacks = [each.refused[name] - each.granted[name] for each in refused if name in each.refused]
        if lacks:
            least = _text(name, maximum - left[name] + min(lacks))
            sentences.append(f"spec.{name} is {_text(name, maximum)}; write {least} or more")
    text = (
        "; ".join(sentences)
        + ": these jobs cannot continue: "
        + _listed([each.claim.name for each in refused])
    )
    return condition(ConditionType.BUDGET_EXHAUSTED, True, Reason.BUDGET_EXHAUSTED, text)


def _listed(jobs: Sequence[str]) -> str:
    named, more = ", ".join(jobs[:MAX_NAMED]), len(jobs) - MAX_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _last(one: Claim | None, had: Amounts) -> dict[str, Decimal]:
    """The amounts that a job is charged once it has ended, or is gone."""
    if one is None:
        return dict(had)
    maximum = {name: max(much, one.used.get(name, NOTHING)) for name, much in had.items()}
    return {
        name: one.used[name] if one.closed and name in one.used else much for name, much in maximum.items()
    }


def _at_least(amounts: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {name: max(much, _step(name, other.get(name, NOTHING))) for name, much in amounts.items()}


def _portion(amounts: Amounts, limits: Amounts) -> Decimal:
    """The largest ratio of an amount to its limit."""
    return max(
        (much / limits[name] if limits[name] else NOTHING for name, much in amounts.items()), default=NOTHING
    )


def _step(name: str, much: Decimal) -> Decimal:
    return much.quantize(STEPS[name == USD], rounding=ROUND_CEILING)


def _granted(job: GrantedJob, limits: Amounts) -> dict[str, Decimal]:
    known = {part.name: _amount(part.granted) for part in job.parts}
    return {name: known.get(name, NOTHING) for name in limits}


def _ended(before: RLBudgetStatus, name: str) -> str:
    return next((limit.ended for limit in before.limits if limit.name == name), "0")


def _is_paused(status: Json) -> bool:
    paused = _block(status.get("pause")).get("time")
    return paused is not None and paused != status.get("resumedPause")


def _amounts(limits: Iterable[Json], key: str) -> dict[str, Decimal]:
    return {
        limit["name"].removeprefix(NAMESPACE): _amount(limit[key])
        for limit in limits
        if limit.get(key) is not None
    }


def _amount(reported: Any) -> Decimal:
    """A reported number. Anything else counts as 0."""
    try:
        found = Decimal(str(reported))
    except InvalidOperation:
        return NOTHING
    return min(found, MAX_AMOUNT) if found.is_finite() and found >= 0 else NOTHING


def _is_not_reporting(status: Json, grant: Json, spent: Amounts) -> bool:
    """Whether a job may have used part of a limit without reporting it.

    The bill of a suspended job is complete. A job that had its grant before it began has reported all usage.
    """
    if status.get("startTime") is None or _is_suspended(status):
        return False
    late = {part.get("name") for part in _list(grant.get("parts")) if part.get("late")}
    return not grant or not late <= spent.keys()


def _is_suspended(status: Json) -> bool:
    known = (each for each in _list(status.get("conditions")) if each.get("type") == ConditionType.SUSPENDED)
    return any(each.get("status") == "True" for each in known)


def _bill(usage: Json) -> dict[str, Decimal]:
    """A job's usage by the names of the limits."""
    found = {USD: _amount(usage["cost"])} if "cost" in usage else {}
    for name in TokenBudget.model_fields:
        key = to_camel(name)
        if (much := usage.get(f"{key}Tokens")) is not None:
            found[f"tokens.{key}"] = _amount(much)
    return found


def _text(name: str, much: Decimal) -> str:
    return shown(much) if name == USD else f"{much:.0f}"


def _block(found: Any) -> Json:
    return found if isinstance(found, dict) else {}


def _list(found: Any) -> list[Json]:
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
