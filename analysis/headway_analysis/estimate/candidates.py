"""Estimates the usage, time and cost of a whole evaluation: what is billed so far, and what is left to play.

The number of episodes is known ahead: each candidate plays each row and sample a fixed number of times. The
estimate of an episode's usage comes from the first of these sources that exists:

* the candidate's own groups on rows of the same kind, once there are two. A few groups say little, so the
  other candidates' usage counts too. The narrower a range is, the more it weighs;
* the other candidates' groups on such rows. Models differ, so low is divided by `OTHERS` and high multiplied
  by it;
* limits and prompts alone (`by_limits`), before any episode was played.

These assumptions replace what cannot be measured:

* no running candidate fails. A failed candidate has nothing left to play;
* rows are measured in the order of their file, so the remaining rows may differ from earlier ones. For what
  is left, low is divided by `ORDER` and high multiplied by it;
* groups follow each other as fast as before. For the remaining seconds, an episode's seconds are subtracted
  from low and added to high. Then low is divided by `PACE` and high multiplied by it;
* prices are those of the day on which the estimate is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Final, NamedTuple

from headway_analysis.estimate import limits
from headway_analysis.estimate.amounts import NOTHING, Range, Usage, added, exactly, multiplied, ordered
from headway_analysis.estimate.limits import RETRIED, Limits
from headway_analysis.estimate.measured import HELD_OUT, IN_TRAINING, NOTHING_MEASURED, OF_TRAINING, Measured
from headway_analysis.estimate.plan import accelerators_of
from headway_analysis.estimate.whole import (
    DISCARDED,
    OF_JUDGES,
    PACE,
    Estimate,
    Price,
    Spent,
    accelerators_to_come,
    priced,
    sampled,
)
from headway_api.config import EvalConfig
from headway_api.prices import ACCELERATORS, class_of
from headway_api.prices import of as of_model
from headway_api.records import SampledBy, UsageClass
from headway_api.spec.suite import Suite

ORDER: Final = 1.25
OTHERS: Final = 2.0
CONTEXT: Final = 32_768
"""The most tokens assumed for an episode if its model's limit is unknown."""
PREFILL, CACHED, SAMPLE = (each.value for each in OF_TRAINING)
PROMPT, ANSWER = UsageClass.ENDPOINT_PROMPT.value, UsageClass.ENDPOINT_SAMPLE.value
SANDBOX: Final = UsageClass.SANDBOX_SECONDS.value
ALIKE: Final[Mapping[str, str]] = {**IN_TRAINING, PROMPT: PREFILL, ANSWER: SAMPLE, DISCARDED: DISCARDED}
"""Class of tokens in a candidate's bill -> class of the same tokens in training, whoever samples."""
BILLED: Final[Mapping[SampledBy, Mapping[str, str]]] = {
    "servers": {**HELD_OUT, DISCARDED: DISCARDED},
    "endpoint": {PREFILL: PROMPT, CACHED: PROMPT, DISCARDED: PROMPT, SAMPLE: ANSWER},
    "nobody": {},
}
"""Who samples -> the inverse of `ALIKE`. An endpoint bills discarded tokens like any others."""


@dataclass(frozen=True)
class Opening:
    """What is known of a candidate before its first episode."""

    prompt: Range | None = None
    """Tokens of its first prompts, on average over the rows; None if it is unknown."""
    context_length: int | None = None
    """Maximum tokens of an episode; None if it is unknown."""


@dataclass(frozen=True)
class Part:
    """What one candidate is measured on: the job's own rows, or the samples of one suite."""

    candidate: str
    groups: int
    """Rows, or samples."""
    group_size: int
    """Episodes on each row or sample."""
    limits: Usage
    """What an episode may use according to limits and prompts alone, by key of the bill."""
    suite: str | None = None
    sampled_by: SampledBy = "servers"
    model: str | None = None
    """The model whose prices apply; None: the job's own model."""
    unit: str = ""
    """Candidates with the same unit are measured side by side: those of one set of servers. Any other
    candidate has a unit of its own."""
    judged: bool = False
    """Whether its reward or score may ask judges."""

    @property
    def on_servers(self) -> bool:
        """Whether it needs rollout servers of the job."""
        return self.sampled_by == "servers"


@dataclass(frozen=True)
class PartProgress:
    """How far a part has come."""

    part: Part
    left: int
    """Groups that are still to be played; 0 if the candidate has failed."""
    measured: Measured = NOTHING_MEASURED
    """What its episodes used so far, by key of the bill."""


@dataclass(frozen=True)
class Sets:
    """The job's sets of rollout servers."""

    at_once: int = 1
    """How many sets may be up at one time."""
    accelerators: int = 0
    """Accelerators of one set. Only those that the spec names count."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """Unit -> seconds from one group to the next. A unit whose pace was not measured is missing."""


class _Ahead(NamedTuple):
    """Seconds that the evaluation and its sets of servers will still take."""

    until_end: Range
    of_sets: Range
    """Seconds that sets of servers will still be up, all sets together."""
    of_sets_before: float
    """Seconds that sets of servers were up until now, all sets together."""


def parts_of(job: EvalConfig, rows: int, known: Mapping[str, Opening]) -> list[Part]:
    """All parts that an evaluation plays, in the order of the job's resolved candidates.

    Args:
        job: the job, with its candidates resolved.
        rows: rows of spec.data that are measured.
        known: what is known of each candidate, by its name.
    """
    spec = job.spec
    contexts = [each.context_length for each in known.values() if each.context_length]
    found = []
    for candidate in job.candidates:
        asked, opening = spec.entry_of(candidate.name), known.get(candidate.name, Opening())
        alone = f"candidate/{candidate.name}"
        shared = Part(candidate.name, rows, spec.evaluation.group_size, {}, unit=alone)
        if asked.endpoint is not None:
            shared = replace(shared, sampled_by="endpoint", model=asked.endpoint.model)
        elif asked.rescore is not None:
            shared = replace(shared, sampled_by="nobody")
        else:
            shared = replace(shared, model=job.priced_as(candidate), unit=f"set/{candidate.server_set}")
        for suite in (None, *spec.suites) if spec.takes_suites(candidate.name) else (None,):
            found.append(_part(job, shared, opening, max(contexts, default=CONTEXT), suite))
    return found


def _part(job: EvalConfig, shared: Part, opening: Opening, context: int, suite: Suite | None) -> Part:
    """A candidate's part. `context`: maximum tokens of an episode if the candidate's own limit is unknown."""
    spec = job.spec
    size = shared.group_size if suite is None else suite.epochs
    asked = Limits(
        context_length=opening.context_length or context,
        max_tokens=spec.max_tokens,
        max_turns=spec.agent.turn_limit if suite is None else None,
        seconds=float(spec.rollout.timeout_seconds),
        group_size=size,
    )
    prompt = opening.prompt if suite is None and opening.prompt is not None else limits.prompt_of([], asked)
    if opening.context_length is None and suite is None and opening.prompt is not None:
        # A tool result follows each turn, and is assumed to be as long as the turn.
        turns = asked.max_turns or limits.OWN_TURNS
        asked = replace(asked, context_length=max(context, round(prompt.high) + 2 * turns * spec.max_tokens))
    found = replace(shared, limits=by_limits(prompt, asked, shared.sampled_by, shared.model), group_size=size)
    if suite is None:
        return replace(found, judged=bool(spec.judges))
    return replace(found, suite=suite.name, groups=suite.limit)


def sets_of(job: EvalConfig, paces: Mapping[str, float]) -> Sets:
    """The job's sets of rollout servers."""
    rollout = job.spec.rollout
    return Sets(job.spec.parallelism, rollout.replicas * accelerators_of(rollout.resources), paces)


def by_limits(prompt: Range, asked: Limits, sampled_by: SampledBy, model: str | None) -> dict[str, Range]:
    """The usage of a candidate's episode before any was played, by key of the bill.

    Low is one short turn, whose whole prompt is in the servers' cache, as prompts of other rows may begin
    alike. High is every turn at its longest, and nothing in the cache.

    Args:
        prompt: tokens of the first prompt.
        asked: the job's limits.
        sampled_by: who samples.
        model: the model whose prices apply; None for the job's own model.
    """
    episode = limits.of_episode(prompt, asked)
    computed, cached, answer = episode[PREFILL], episode[CACHED], episode[SAMPLE]
    found = {SANDBOX: episode[SANDBOX]}
    if sampled_by == "servers":
        found |= {
            of_model(HELD_OUT[PREFILL], model): ordered(0.0, computed.likely, computed.high),
            of_model(HELD_OUT[CACHED], model): ordered(prompt.low, cached.likely, cached.likely),
            of_model(HELD_OUT[SAMPLE], model): answer,
            of_model(DISCARDED, model): episode[DISCARDED],
        }
    elif sampled_by == "endpoint":
        maximum = 1 + RETRIED  # discarded tokens cost as much as others
        prompt_tokens = ordered(prompt.low, computed.likely + cached.likely, computed.high * maximum)
        found |= {
            of_model(PROMPT, model): prompt_tokens,
            of_model(ANSWER, model): ordered(answer.low, answer.likely, answer.high * maximum),
        }
    return found


def of_evaluation(
    standings: Sequence[PartProgress],
    price: Price,
    *,
    sets: Sets | None = None,
    spent: Spent | None = None,
    why: str = "",
) -> Estimate:
    """Estimate the whole evaluation, before, during or after it.

    `basis` is Data until a part has two groups, and Running from then on. Low is never below what is spent.
    Once nothing is left to play, low, likely and high are all equal to the bill.

    Args:
        standings: how far each part has come.
        price: today's prices.
        sets: the job's sets of rollout servers; None if they are not known.
        spent: what the ledger has recorded; None if there is no ledger.
        why: why the estimate uses only the data; ignored once `basis` is Running.
    """
    done, servers = spent or Spent(), sets or Sets()
    ahead = [each for each in standings if each.left > 0]
    known = any(each.measured.is_sufficient for each in standings) or not ahead
    rest = added(_rest(each, standings) for each in ahead)
    time = _ahead(standings, servers)
    if time is not None:
        rest |= accelerators_to_come(servers.accelerators, done.usage, time.of_sets_before, time.of_sets)
    found = Estimate(
        "Running" if known else "Data",
        added([{name: exactly(much) for name, much in done.usage.items() if much}, rest]),
        seconds=None if time is None else time.until_end.plus(exactly(done.seconds)),
        episodes=sum(each.measured.episodes for each in standings),
        why="" if known else why,
    )
    found = priced(found, done.cost, rest, price)
    unknown = _unknown(ahead, standings, servers, time)
    return replace(found, unpriced=tuple(dict.fromkeys((*found.unpriced, *unknown))))


def _unknown(
    ahead: Sequence[PartProgress], standings: Sequence[PartProgress], sets: Sets, time: _Ahead | None
) -> list[str]:
    """Classes whose usage cannot be estimated."""
    guessed = [each for each in ahead if not each.measured.is_sufficient and not _sources(each, standings)]
    judges = OF_JUDGES if any(each.part.judged for each in guessed) else ()
    waits = time is None and sets.accelerators and any(each.part.on_servers for each in ahead)
    return [*judges, *([ACCELERATORS] if waits else [])]


def _rest(one: PartProgress, standings: Sequence[PartProgress]) -> dict[str, Range]:
    """What the remaining groups of a part will use, by key of the bill."""
    theirs = _alike(one, sources) if (sources := _sources(one, standings)) else None
    episode: Usage
    if not one.measured.is_sufficient:
        episode = one.part.limits if theirs is None else theirs
    else:
        own = sampled(one.measured, one.left, exactly(1.0), 1.0)
        both = own if theirs is None else {key: _both(each, theirs.get(key)) for key, each in own.items()}
        episode = {key: amount.spread(ORDER) for key, amount in both.items()}
    return multiplied(episode, exactly(float(one.left * one.part.group_size)))


def _both(own: Range, theirs: Range | None) -> Range:
    """Combine a candidate's own range with the range of the other candidates. The narrower range has more
    weight. If the others never used the class, the candidate's own range stays."""
    if theirs is None or theirs.likely <= 0:
        return own
    mine, other = (own.high - own.low) ** 2, (theirs.high - theirs.low) ** 2
    weight = other / (mine + other) if mine + other > 0 else 1.0
    return ordered(*(weight * a + (1 - weight) * b for a, b in zip(own, theirs, strict=True)))


def _sources(one: PartProgress, standings: Sequence[PartProgress]) -> list[PartProgress]:
    """Other parts on the same rows, from whose episodes this part's usage can be estimated. A part that is
    only scored again is no source for a part that samples."""
    return [
        each
        for each in standings
        if each is not one
        and each.measured.is_sufficient
        and each.part.suite == one.part.suite
        and (one.part.sampled_by == "nobody" or each.part.sampled_by != "nobody")
    ]


def _alike(one: PartProgress, sources: Sequence[PartProgress]) -> dict[str, Range]:
    """An episode's usage in a part, estimated from the episodes of other parts."""
    usages = [
        _billed_to(one.part, each.part, sampled(each.measured, one.left, exactly(1.0), 1.0))
        for each in sources
    ]
    found = {}
    for key in sorted({key for usage in usages for key in usage}):
        each = [usage.get(key, NOTHING) for usage in usages]
        likely = fsum(amount.likely for amount in each) / len(each)
        low, high = min(amount.low for amount in each), max(amount.high for amount in each)
        found[key] = ordered(low / OTHERS, likely, high * OTHERS)
    return found


def _billed_to(mine: Part, theirs: Part, episode: Usage) -> dict[str, Range]:
    """The bill of another candidate's episode, as if this candidate had played it."""
    split = _split(mine) if mine.on_servers and theirs.sampled_by == "endpoint" else {PREFILL: 1.0}
    found = []
    for key, amount in episode.items():
        alike = ALIKE.get(class_of(key))
        if alike is None:
            # If stored episodes are scored again, the sandbox does not wait for a model.
            waits = key == SANDBOX and mine.sampled_by == "nobody" != theirs.sampled_by
            found.append({key: ordered(0.0, amount.likely, amount.high) if waits else amount})
            continue
        for name, share in split.items() if alike == PREFILL else [(alike, 1.0)]:
            if (billed := BILLED[mine.sampled_by].get(name)) is not None:
                found.append({of_model(billed, mine.model): amount.times(exactly(share))})
    return added(found)


def _split(part: Part) -> dict[str, float]:
    """The shares of a prompt that servers compute, and that they find in their cache. An endpoint reports
    only the sum of both."""
    computed = part.limits.get(of_model(HELD_OUT[PREFILL], part.model), NOTHING).likely
    cached = part.limits.get(of_model(HELD_OUT[CACHED], part.model), NOTHING).likely
    share = computed / (computed + cached) if computed + cached > 0 else 1.0
    return {PREFILL: share, CACHED: 1 - share}


def _ahead(standings: Sequence[PartProgress], sets: Sets) -> _Ahead | None:
    """Seconds that are left at the pace of the groups so far; None before any pace was measured."""
    paces = sets.paces
    left, done = _groups(standings)
    if not any(left.values()):
        return _Ahead(NOTHING, NOTHING, 0.0)
    if not paces:
        return None
    servers = {each.part.unit for each in standings if each.part.on_servers}

    def pace(unit: str) -> float:
        alike = [paces[other] for other in sorted(paces) if (other in servers) == (unit in servers)]
        known = alike or [*paces.values()]
        return paces.get(unit, fsum(known) / len(known))

    last = max(
        (each.measured.means[SANDBOX].value for each in standings if SANDBOX in each.measured.means),
        default=0.0,
    )
    times = {unit: _time(groups * pace(unit), last) for unit, groups in left.items() if groups}
    of_sets = [times[unit] for unit in sorted(times.keys() & servers)]
    alone = [times[unit] for unit in sorted(times.keys() - servers)]
    total = Range(*map(fsum, zip(*of_sets, strict=True))) if of_sets else NOTHING
    side_by_side = [total.times(exactly(1 / max(1, sets.at_once))), *of_sets, *alone]
    until_end = Range(*map(max, zip(*side_by_side, strict=True)))
    before = fsum(done[unit] * paces[unit] for unit in sorted(servers & paces.keys()))
    return _Ahead(until_end, total, before)


def _time(paced: float, last: float) -> Range:
    """Seconds that a unit will take.

    Args:
        paced: seconds of the remaining groups at the pace so far.
        last: seconds of an episode. The running episodes may be nearly over, and the last one may run alone.
    """
    return ordered(max(0.0, paced - last) / PACE, paced, (paced + last) * PACE)


def _groups(standings: Iterable[PartProgress]) -> tuple[dict[str, int], dict[str, int]]:
    """For each unit: the groups that are left, and the groups that are done."""
    left: dict[str, int] = {}
    done: dict[str, int] = {}
    for each in standings:
        unit, ahead = each.part.unit, max(0, each.left)
        left[unit] = left.get(unit, 0) + ahead
        done[unit] = done.get(unit, 0) + max(0, each.part.groups - ahead)
    return left, done
