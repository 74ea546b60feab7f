"""A job under a budget stays within it in any sequence of events. Hypothesis drives a state machine.

The budget, the ledger, groups and events are the real ones. The test simulates episodes, the learner, the
price book, the clock and the deaths of the coordinator. BILL_RUNS sets the number of jobs that are drawn.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway_api.accelerators import Accelerators, HeldPod, HeldSeconds, seconds
from headway_api.artifacts import Layout
from headway_api.prices import DatedPrices, PriceBook, Prices
from headway_api.records import (
    Canary,
    EpisodeRecord,
    GroupRecord,
    Judgement,
    Outcome,
    PolicyVersion,
    Purpose,
    StepReport,
    TrainingRow,
    Turn,
    VersionSpan,
    WeightsManifest,
)
from headway_api.spec.lifecycle import BudgetSpec
from headway_api.store import FileStore
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.bounds import GIVEN_UP, TOO_OLD_NOW
from headway_coordinator.budget import worst
from headway_coordinator.budget.accelerators import AHEAD_SECONDS, worst_case
from headway_coordinator.budget.account import CLASSES as LIMITED
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.priced import Priced
from headway_coordinator.budget.worst import Bill, Limits, of_judgements
from headway_coordinator.dataset import Slot
from headway_coordinator.episode import Task
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.process import BUDGET_SECONDS

pytestmark = pytest.mark.timeout(1800)  # `make test-bill` draws thousands of jobs

CONTEXT, TURNS, MAX_TOKENS, SANDBOX, RETRIES = 64, 3, 16, 20, 1
LIMITS = Limits(CONTEXT, TURNS, SANDBOX, RETRIES)
SAMPLED = LIMITS.sampled(MAX_TOKENS, None)
BEGAN = datetime(2026, 5, 1, tzinfo=UTC)
PRODUCT = "gpu"
TICK = int(BUDGET_SECONDS)
ORDER = [*LIMITED]
PURPOSES = (Purpose.TRAIN, Purpose.TRAIN, Purpose.TRAIN, Purpose.VALIDATION, Purpose.PREFLIGHT)
CLASSES = (
    "prefill", "cached_prefill", "sample", "train", "evaluation_prefill", "evaluation_cached_prefill",
    "evaluation_sample", "judge_prompt", "judge_sample", "sandbox_seconds", "accelerator_seconds",
)  # fmt: skip
MONEY = st.sampled_from(["0.4", "3", "25"])
ROOM = st.sampled_from([None, 1, 1, 1, 1.3, 2])
"""How many groups at their worst case fit the budget. None if there is no budget."""
DAYS = st.integers(1, 3)
PRICED = (*CLASSES, "train", "train", "sample", "prefill", "judge_prompt")
PRICES = st.dictionaries(st.sampled_from(PRICED), MONEY, min_size=1, max_size=2)
"""Most classes are free, so that another class's reservation rarely hides one that is too small."""
WORK = (*["begin"] * 4, *["end"] * 5, "ask", "ask", "step", "step", "give up", "stop")
PART = st.sampled_from([0.0, 0.5, 1.0, 1.0])


QUESTION = Judgement(judge="j", question="0" * 64, prompt_tokens=400, sampled_tokens=50)
"""The largest question that an episode asks a judge."""


@dataclass
class Open:
    """A running episode."""

    task: Task
    ends: asyncio.Future[EpisodeRecord]
    judgements: list[Judgement] = field(default_factory=list)


def plan(purpose: Purpose, number: int, size: int) -> groups.Plan:
    return groups.Plan(
        slot=Slot(position=number, epoch=0, row=number),
        purpose=purpose,
        step=number,
        row={},
        size=size,
        sampling=Sampling(1.0, 1.0, MAX_TOKENS),
        job_seed=1,
    )


def version(step: int) -> PolicyVersion:
    return PolicyVersion(incarnation=0, step=step)


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[int, int, int, bool]]:
    """Turns of an episode, most at their maximum: prompt, cached and sampled tokens, and if delivered."""
    if draw(st.integers(0, 3)):
        cached = draw(st.sampled_from([0, CONTEXT - MAX_TOKENS]))
        return [(CONTEXT - MAX_TOKENS, cached, MAX_TOKENS, draw(st.integers(0, 7)) != 7)] * TURNS
    found = []
    for _ in range(draw(st.integers(1, TURNS))):
        sampled = draw(st.integers(1, MAX_TOKENS))
        prompt = draw(st.integers(1, CONTEXT - sampled))
        found.append((prompt, draw(st.integers(0, prompt)), sampled, draw(st.booleans())))
    return found


def record(
    one: Open, turn_counts: list[tuple[int, int, int, bool]], lost: bool, seconds: float, at: float
) -> EpisodeRecord:
    """A sealed episode with a training row for each turn, as if the agent edits its history every time."""
    rows = [
        TrainingRow(
            tokens=[1] * (prompt + sampled),
            mask=[0] * prompt + [1] * sampled,
            logprobs=[0.0] * prompt + [-0.5] * sampled,
            versions=[VersionSpan(start=prompt, end=prompt + sampled, version=version(0))],
        )
        for prompt, _, sampled, delivered in turn_counts
        if delivered
    ]
    task = one.task
    return EpisodeRecord(
        episode_id=task.episode_id,
        group_id=task.group_id,
        index=task.index,
        attempt=task.attempt,
        outcome=Outcome.INFRA_ERROR if lost else Outcome.COMPLETED,
        error="lost" if lost else None,
        reward=None if lost else 1.0,
        score=None if lost else 1.0,
        metrics={},
        messages=[],
        turns=[
            Turn(
                index=index,
                prompt_tokens=prompt,
                cached_tokens=cached,
                sampled_tokens=sampled,
                finish_reason="stop",
                policy_version=version(0),
                delivered=delivered,
            )
            for index, (prompt, cached, sampled, delivered) in enumerate(turn_counts)
        ],
        rows=rows,
        judgements=one.judgements,
        sandbox_seconds=seconds,
        started_at=at,
        finished_at=at,
    )


def recounted(kept: Iterable[GroupRecord]) -> Counter[str]:
    """Usage of the groups by class, counted turn by turn."""
    found: Counter[str] = Counter()
    for group in kept:
        trains = group.purpose is Purpose.TRAIN
        names = ("prefill", "cachedPrefill", "sample")
        if not trains:
            names = ("evaluationPrefill", "evaluationCachedPrefill", "evaluationSample")
        for episode in [*group.episodes, *group.discarded]:
            lost = group.abandoned is not None or episode.reward is None or episode in group.discarded
            found["sandboxSeconds"] += 0 if lost else episode.sandbox_seconds
            for asked in episode.judgements:
                found["judgePrompt"] += asked.prompt_tokens
                found["judgeSample"] += asked.sampled_tokens
            for turn in episode.turns:
                computed = turn.prompt_tokens - turn.cached_tokens
                if lost or not turn.delivered:
                    found["discarded"] += computed + turn.sampled_tokens
                    continue
                found[names[0]] += computed
                found[names[1]] += turn.cached_tokens
                found[names[2]] += turn.sampled_tokens
    return found


def priced(by_class: Mapping[str, str], discarded: str) -> Prices:
    free = dict.fromkeys(CLASSES, "0")
    return Prices(**{**free, **by_class, "discarded": discarded})  # type: ignore[arg-type]


class JobUnderABudget(RuleBasedStateMachine):
    """One job, from its first coordinator on."""

    @initialize(
        usd=ROOM,
        tokens=st.dictionaries(
            st.sampled_from(["prefill", "sample", "train", "discarded", "evaluation", "judge"]),
            st.sampled_from([1, 1.5, 3]),
            max_size=2,
        ),
        prices=PRICES,
        later=st.one_of(st.none(), PRICES),
        discarded=st.sampled_from(["0", "0", "3"]),
        luck=st.sampled_from([2, 8]),
        focus=st.one_of(st.none(), st.sampled_from([*CLASSES, "discarded"])),
    )
    def begins(
        self,
        usd: float | None,
        tokens: dict[str, float],
        prices: dict[str, str],
        later: dict[str, str] | None,
        discarded: str,
        luck: int,
        focus: str | None,
    ) -> None:
        """Begin a job. With `focus`, only this class costs, one group fits the budget, and neither changes.

        So no other reservation hides one of this class that is too small.
        """
        self.luck = luck
        """One attempt in this number is lost."""
        self.focus = focus
        if focus is not None:
            usd, tokens, later = 1, {}, None
            prices, discarded = ({}, "3") if focus == "discarded" else ({focus: "3"}, "0")
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.store, self.layout = FileStore(), Layout(f"file://{self.folder.name}", "ns", "job", "uid")
        self.now = BEGAN
        entry = DatedPrices(since=BEGAN.date(), prices=priced(prices, discarded))
        self.book = PriceBook(name="book", entries=(entry,))
        if later is not None:
            after = DatedPrices(since=BEGAN.date() + timedelta(days=1), prices=priced(later, discarded))
            self.book = PriceBook(name="book", entries=(entry, after))
        self.spec = self._spec(usd, tokens)
        self.numbers = itertools.count()
        self.kept: dict[str, GroupRecord] = {}
        """Groups in the spool."""
        self.trained: dict[int, StepReport] = {}
        self.waiting: dict[str, GroupRecord] = {}
        """Finished groups that a step may train."""
        self.allowed: dict[str, Decimal] = {}
        """The most that may be spent of each limit.

        It is the limit, or if more, the amount spent and reserved at the last change of a limit or price.
        """
        self.pod: HeldPod | None = None
        self.holds_since: datetime | None = None
        self.totals = 0
        """Accelerator seconds held by pods that have ended."""
        self.start_number = 0
        self._start()
        self._allow()

    def _spec(self, usd: float | None, tokens: dict[str, float]) -> BudgetSpec | None:
        """A budget in which `usd` groups fit in money, and `tokens` groups in each class of tokens."""
        bounds = dict.fromkeys(tokens, 1)
        bare = BudgetSpec.model_validate({"usd": "0", "tokens": bounds or None})
        priced = Priced(Ledger(self.store, self.layout), lambda: self.book, lambda: self.now.date())
        account = Budget(bare, priced).account
        one = worst.of_attempts(LIMITS, Bill(Purpose.TRAIN), SAMPLED, RETRIES + 1)
        one = worst.total([*[one] * 3, of_judgements([QUESTION])])
        money, *others = (account.worth(limit, one) for limit in account.limits)
        named = zip(sorted(tokens, key=ORDER.index), others, strict=True)
        maximum = {name: max(1, int(much * Decimal(tokens[name]))) for name, much in named}
        if usd is None and not tokens:
            return None
        limiter = None if usd is None else f"{(money * Decimal(usd)).quantize(Decimal('0.00000001')):f}"
        return BudgetSpec.model_validate({"usd": limiter, "tokens": maximum or None})

    def _start(self) -> None:
        """Start a coordinator, which reads the ledger and the finished groups and steps."""
        self.start_number += 1
        self.ledger = Ledger(self.store, self.layout)
        self.ledger.load()
        for group in self.kept.values():
            self.ledger.group(group)
        for report in self.trained.values():
            self.ledger.step(report, self.now.timestamp())
        self.budget = Budget(self.spec, Priced(self.ledger, lambda: self.book, lambda: self.now.date()))
        self.open: dict[str, Open] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.asking: set[asyncio.Task[None]] = set()
        for group in self.waiting.values():
            self.budget.awaits_step(group)
        self.budget.reserve_time(self._ahead())

    def _run(self, call: Callable[[], Any] = lambda: None) -> None:
        """Run `call` on the event loop, and wait for everything that it sets off."""

        async def turn() -> None:
            call()
            for _ in range(30):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())
        for task in [each for each in self.tasks | self.asking if each.done()]:
            self.tasks.discard(task)
            self.asking.discard(task)
            if not task.cancelled():
                task.result()

    def _allow(self) -> None:
        """After a change of limits or prices, allow at most the amounts already spent and reserved."""
        self.allowed = {
            each.limit.name: max(each.limit.maximum, each.spent + each.reserved)
            for each in self.budget.account.standings()
        }

    async def _live(self, plan: groups.Plan) -> None:
        async with self.budget.group(plan, Bill(plan.purpose), LIMITS, SAMPLED) as held:
            group = await groups.run(
                replace(plan, spending=held),
                held.watched(self._episode),
                AdaptiveSemaphore(100),
                start_number=self.start_number,
                max_retries=RETRIES,
            )
            if not group.episodes:
                return
            self.kept[group.group_id] = group
            self.ledger.group(group)
            if plan.purpose is Purpose.TRAIN and group.abandoned is None:
                self.waiting[group.group_id] = group
                self.budget.awaits_step(group)

    async def _episode(self, task: Task) -> EpisodeRecord:
        one = Open(task, self.loop.create_future())
        self.open[task.episode_id] = one
        try:
            return await one.ends
        finally:
            del self.open[task.episode_id]
            for asking in self.asking:
                if asking.get_name() == task.episode_id:
                    asking.cancel()

    @rule(data=st.data(), what=st.lists(st.sampled_from(WORK), min_size=8, max_size=16))
    def the_job_goes_on(self, data: st.DataObject, what: list[str]) -> None:
        """Do several kinds of work in one rule, because hypothesis omits some rules from each run."""
        for each in what:
            if each == "begin":
                self._groups_want_to_begin(data.draw(st.sampled_from(PURPOSES)), data.draw(st.integers(2, 3)))
            elif each == "end" and self.open:
                self._episodes_end(data)
            elif each == "ask" and self.open:
                self._an_episode_asks_a_judge(data)
            elif each == "step" and self.waiting:
                self._a_step_is_taken(data)
            elif each == "give up" and self.waiting:
                self._a_finished_group_is_given_up(data.draw(st.sampled_from(sorted(self.waiting))))
            elif each == "stop" and self.open:
                one = self.open[data.draw(st.sampled_from(sorted(self.open)))]
                self._run(partial(one.task.stop.now, TOO_OLD_NOW))
            self.no_more_is_spent_than_there_is()

    def _groups_want_to_begin(self, purpose: Purpose, size: int) -> None:
        wanted = plan(purpose, next(self.numbers), size)
        self._run(lambda: self.tasks.add(self.loop.create_task(self._live(wanted))))

    def _episodes_end(self, data: st.DataObject) -> None:
        for name in sorted(self.open)[: data.draw(st.integers(1, 6))]:
            if name not in self.open or any(task.get_name() == name for task in self.asking):
                continue  # the episode was stopped with its group, or waits for a judge
            turn_counts, lost = data.draw(turns()), data.draw(st.integers(1, self.luck)) == 1
            used = data.draw(st.sampled_from([0.5, float(SANDBOX)]))
            made = record(self.open[name], turn_counts, lost, used, self.now.timestamp())
            self._run(partial(self.open[name].ends.set_result, made))

    def _an_episode_asks_a_judge(self, data: st.DataObject) -> None:
        one = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        part, prompt, sampled = data.draw(PART), data.draw(st.sampled_from([10, 400])), data.draw(st.just(50))
        maximum = Judgement(judge="j", question="0" * 64, prompt_tokens=prompt, sampled_tokens=sampled)
        found = maximum.model_copy(
            update={"prompt_tokens": int(prompt * part), "sampled_tokens": int(sampled * part)}
        )

        async def ask() -> None:
            async with one.task.spending.reserved(of_judgements([maximum])) as used:
                one.judgements.append(found)
                used(of_judgements([found]))

        name = one.task.episode_id
        self._run(lambda: self.asking.add(self.loop.create_task(ask(), name=name)))

    def _a_step_is_taken(self, data: st.DataObject) -> None:
        keys = data.draw(st.sets(st.sampled_from(sorted(self.waiting)), min_size=1, max_size=2))
        part, step = data.draw(PART), len(self.trained) + 1
        rows = {key: [row for e in self.waiting[key].scored for row in e.rows] for key in keys}
        tokens = {key: int(part * sum(len(row.tokens) for row in found)) for key, found in rows.items()}
        canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=0.1)
        weights = WeightsManifest(
            version=version(step), kind="lora", uri="file:///w", files=[], canary=canary
        )
        report = StepReport(
            step=step, version=version(step), groups=sorted(keys), train_tokens=tokens, weights=weights,
            durable=step, metrics={},
        )  # fmt: skip
        self.trained[step] = report

        def take() -> None:
            self.ledger.step(report, self.now.timestamp())
            for key in keys:
                del self.waiting[key]
                self.budget.settled(key)

        self._run(take)

    def _a_finished_group_is_given_up(self, key: str) -> None:
        group = self.waiting.pop(key).model_copy(update={"abandoned": GIVEN_UP["TooOld"]})
        self.kept[key] = group

        def give_up() -> None:
            self.ledger.group(group)
            self.budget.settled(key)

        self._run(give_up)

    @precondition(lambda self: self.open or self.waiting)
    @rule()
    def the_coordinator_is_killed(self) -> None:
        self._end()
        self._start()

    def _end(self) -> None:
        async def end() -> None:
            for task in self.tasks | self.asking:
                task.cancel()
            await asyncio.gather(*self.tasks, *self.asking, return_exceptions=True)

        self.loop.run_until_complete(end())

    @precondition(lambda self: self.focus is None)
    @rule(what=st.sampled_from(["correction", "later", "budget"]), data=st.data())
    def a_person_changes_something(self, what: str, data: st.DataObject) -> None:
        """A person changes a past price, a price of a later day, or the budget."""
        first, *others = self.book.entries
        if what == "budget":
            self.spec = self._spec(data.draw(ROOM), {})
            self._run(lambda: self.budget.set(self.spec))
        else:
            made = priced(data.draw(PRICES), first.prices.discarded)
            entries = (first.model_copy(update={"prices": made}), *others)
            if what == "later":
                since = max(self.now.date(), self.book.entries[-1].since) + timedelta(data.draw(DAYS))
                entries = (*self.book.entries, DatedPrices(since=since, prices=made))
            self.book = self.book.model_copy(update={"entries": entries})
            self._run(self.budget.look)
        self._allow()

    @precondition(lambda self: self.pod is None)
    @rule(days=st.integers(-1, 3))
    def the_clock_jumps(self, days: int) -> None:
        self.now += timedelta(days=days)
        self._run(self.budget.look)

    @precondition(lambda self: self.budget.exhausted_at is None and self.pod is None)
    @rule(count=st.integers(1, 4))
    def a_pod_gets_accelerators(self, count: int) -> None:
        self.pod = HeldPod(uid="p", role="learner", product=PRODUCT, count=count, since=self.now)
        if self.budget.account.shortfalls(self._ahead()):
            self.pod = None  # docs/budget.md: a budget without room for these minutes is refused
        else:
            self._run(lambda: self.budget.reserve_time(self._ahead()))

    @precondition(lambda self: self.pod is not None and self.budget.exhausted_at is None)
    @rule(ticks=st.integers(1, 40), counted=st.booleans())
    def time_passes(self, ticks: int, counted: bool) -> None:
        for _ in range(ticks):
            self.now += timedelta(seconds=TICK)
            if counted:
                self.ledger.accelerators(seconds(self._held_accelerators()), self.now.timestamp())
            self._run(lambda: self.budget.reserve_time(self._ahead()))
            if self.budget.exhausted_at is not None:
                return

    @precondition(lambda self: self.pod is not None and self.budget.exhausted_at is not None)
    @rule(passed=st.sampled_from([0, AHEAD_SECONDS - TICK]))
    def the_pods_of_an_exhausted_job_end(self, passed: int) -> None:
        assert self.pod is not None
        self.now += timedelta(seconds=passed)
        self.pod = self.pod.model_copy(update={"until": self.now})
        held = seconds(self._held_accelerators())
        self.ledger.accelerators(held, self.now.timestamp())
        self.totals, self.pod = sum(held.values()), None
        self._run(lambda: self.budget.reserve_time({}))

    def _held_accelerators(self) -> Accelerators:
        totals = (
            [HeldSeconds(role="learner", product=PRODUCT, seconds=str(self.totals))] if self.totals else []
        )
        return Accelerators(seen_time=self.now, totals=totals, pods=[self.pod] if self.pod else [])

    def _ahead(self) -> Any:
        return worst_case(self._held_accelerators(), self.ledger.accelerator_totals(), self.now)

    @invariant()
    def no_more_is_spent_than_there_is(self) -> None:
        for each in self.budget.account.standings():
            maximum = self.allowed[each.limit.name]
            assert each.spent <= maximum, f"{each.limit.name}: {each.spent} of {maximum}"
            if each.left >= 0:
                self.allowed[each.limit.name] = each.limit.maximum

    @invariant()
    def the_ledger_is_what_the_trajectories_say(self) -> None:
        found = recounted(self.kept.values())
        for report in self.trained.values():
            found["train"] += sum(report.train_tokens.values())
        billed: Counter[str] = Counter()
        for totals in self.ledger.days.values():
            for name, much in totals.items():
                billed[name.value] += much
        for name in {*found, *billed} - {"acceleratorSeconds"}:
            assert abs(found[name] - billed[name]) < 1e-6, name

    @invariant()
    def whatever_fits_has_begun(self) -> None:
        waiting = [wait.amounts for wait in self.budget._queue]
        assert all(self.budget.account.shortfalls(amounts) for amounts in waiting)

    @invariant()
    def an_idle_job_says_why(self) -> None:
        if self.budget.waiting and not self.open:
            assert self.budget.exhausted_at is not None
        assert self.budget.exhausted_at is not None or not self.budget.account.shortfalls({})
        if self.budget.exhausted_at is not None:
            assert self.budget.shortfalls()
            assert all(each.needed > each.limit.maximum for each in self.budget.shortfalls())

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self._end()
            self.loop.close()
            self.folder.cleanup()


RUNS = int(os.environ.get("BILL_RUNS", "60"))
TestJobUnderABudget = JobUnderABudget.TestCase
TestJobUnderABudget.settings = settings(
    max_examples=RUNS, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
