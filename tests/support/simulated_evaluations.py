"""Evaluations that differ in candidates, endpoints, judges, suites and prices, played by their driver.

Driver, spool, ledger and estimates are the product's own code. Episodes are random: a row is long or short
for every candidate, and a candidate talks much or little on all rows. Each unit has its own clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from math import fsum
from pathlib import Path
from typing import Any

from headway_analysis.estimate.amounts import exactly
from headway_analysis.estimate.candidates import Opening
from headway_analysis.estimate.made import Made
from headway_api.accelerators import Holder
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.prices import DatedPrices, PriceBook, Tariff
from headway_api.records import EpisodeRecord, Judgement, Outcome, PolicyVersion, Turn
from headway_api.store import FileStore
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.dataset import position_of
from headway_coordinator.episode import Task
from headway_coordinator.evaluation.estimates import EvalEstimates
from headway_coordinator.evaluation.run import Evaluation, RunOfCandidate, Unit
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.spool import Spool

BEGAN = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
CONTEXT, TURNS, MAX_TOKENS, PLACES = 8192, 6, 512, 4
PRICES = {
    "evaluationPrefill": "0.13", "evaluationCachedPrefill": "0.026", "evaluationSample": "0.4",
    "discarded": "0.05", "endpointPrompt": "2.5", "endpointSample": "10", "judgePrompt": "1.1",
    "judgeSample": "4.4", "sandboxSeconds": "0.00001", "accelerators": {"H100": "0.0011"},
}  # fmt: skip
MODELS = {
    "hf://org/large": {"evaluationPrefill": "0.9", "evaluationSample": "2.8"},
    "frontier*": {"endpointPrompt": "5", "endpointSample": "25"},
}


@dataclass(frozen=True)
class Talk:
    """How much a candidate talks, and how many of its attempts are lost."""

    turns: float = 3.0
    """Average number of turns in an episode."""
    answer: float = 80.0
    """Tokens in a turn."""
    lost: float = 0.02
    """Share of attempts that are lost, 0 to 1."""


@dataclass(frozen=True)
class Case:
    """One evaluation."""

    name: str
    candidates: tuple[dict[str, Any], ...]
    """The candidates in the spec's form."""
    talks: Mapping[str, Talk] = field(default_factory=dict)
    rows: int = 100
    spec: Mapping[str, Any] = field(default_factory=dict)
    sets: Mapping[str, int] = field(default_factory=dict)
    """Maps a candidate to the number of its server set."""
    judged: int = 0
    """Number of questions to judges in an episode on a row."""
    accelerators: int = 0
    """Accelerators that each server set holds."""

    @property
    def config(self) -> EvalConfig:
        """The job that this case describes."""
        content = {
            "candidates": self.candidates,
            "data": {"uri": "s3://b/t.jsonl"},
            "agent": {"builtin": {"maxTurns": TURNS}},
            "environment": {"image": "i", "entrypoint": "m:C"},
            "evaluation": {"groupSize": 2, "sampling": {"temperature": 1.0, "maxTokens": MAX_TOKENS}},
            "rollout": {"maxConcurrency": PLACES, "maxRetries": 2, "timeoutSeconds": 60},
            "output": {"uri": "s3://b/o"},
        } | dict(self.spec)
        resolved = [_resolved(each, self.sets.get(each["name"], 0)) for each in self.candidates]
        return EvalConfig.model_validate(
            {"name": "job", "namespace": "ns", "uid": "u", "spec": content, "candidates": resolved}
        )


def _resolved(candidate: Mapping[str, Any], number: int) -> dict[str, Any]:
    name = candidate["name"]
    if "model" not in candidate:
        return {"name": name, "kind": "Endpoint" if "endpoint" in candidate else "Rescore"}
    base = candidate["model"]["base"]
    return {"name": name, "kind": "Model", "base": base, "dtype": "bfloat16", "serverSet": number}


def served(name: str, base: str = "hf://org/small") -> dict[str, Any]:
    """Return a candidate that rollout servers serve."""
    return {"name": name, "model": {"base": base}}


def elsewhere(name: str, model: str = "frontier-9") -> dict[str, Any]:
    """Return a candidate at an endpoint."""
    return {"name": name, "endpoint": {"url": "http://api.example/v1", "model": model}}


SUITE = {
    "name": "general", "task": "pkg/task", "image": "i", "limit": 40, "epochs": 1,
}  # fmt: skip
JUDGE = {"name": "grader", "endpoint": {"url": "http://judge.example/v1", "model": "judge-1"}}
GPU = {"limits": {"nvidia.com/gpu": 2}}
CASES = (
    Case("one model", (served("base"),)),
    Case(
        "two adapters on one set, eight tries",
        (served("base"), served("tuned")),
        {"tuned": Talk(4.0, 120.0)},
        rows=60,
        spec={"evaluation": {"groupSize": 8, "sampling": {"temperature": 1.0, "maxTokens": MAX_TOKENS}}},
    ),
    Case(
        "a model beside an endpoint",
        (served("base"), elsewhere("reference")),
        {"reference": Talk(2.0, 200.0, lost=0.0)},
    ),
    Case("endpoints alone", (elsewhere("one"), elsewhere("other", "open-1")), {"one": Talk(5.0)}),
    Case(
        "judges, and many lost attempts",
        (served("base"), served("tuned")),
        {"base": Talk(lost=0.15), "tuned": Talk(lost=0.1)},
        spec={"judges": [JUDGE]},
        judged=2,
    ),
    Case(
        "a suite, and a stored run scored again",
        (served("base"), {"name": "before", "rescore": {"uri": "s3://b/run", "step": 4}}),
        spec={"suites": [SUITE]},
    ),
    Case(
        "models of two prices, one set after the other",
        (served("small"), served("large", "hf://org/large")),
        rows=120,
        sets={"small": 0, "large": 1},
    ),
    Case(
        "accelerators that are paid by the second",
        (served("base"), served("large", "hf://org/large")),
        spec={
            "parallelism": 2,
            "rollout": {"maxConcurrency": PLACES, "timeoutSeconds": 60, "resources": GPU},
        },
        sets={"base": 0, "large": 1},
        accelerators=2,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """An estimate, and when it was shown."""

    share: float
    """Share of groups that were done by then, 0 to 1."""
    cost: Decimal
    """US dollars billed by then."""
    made: Made

    @property
    def ends(self) -> tuple[Decimal, Decimal, Decimal]:
        """The low, likely and high cost, in US dollars."""
        assert self.made.cost is not None
        low, likely, high = map(Decimal, self.made.cost)
        return low, likely, high


class Simulated:
    """One evaluation in a folder. Several coordinators may run it, one after another."""

    def __init__(self, case: Case, folder: Path, seed: int = 0) -> None:
        self.case, self.job, self.seed = case, case.config, seed
        self.store, self.layout = FileStore(), Layout(f"file://{folder}", "ns", "job", "uid")
        self.rows = [{"prompt": str(number)} for number in range(case.rows)]
        self.book = PriceBook(
            name="ours",
            entries=(
                DatedPrices.model_validate({"since": "2026-01-01", "prices": PRICES, "models": MODELS}),
            ),
        )
        self.tariff = Tariff(self.book, self.job.model)
        self.shown: list[Shown] = []
        self.clocks: dict[str, float] = {}
        self.dies_at: float | None = None
        """The share of groups, 0 to 1, at which the coordinator is killed."""
        self.fails: str | None = None
        """The candidate that fails at half of its rows, if any."""

    async def live(self, every: float = 0.05) -> None:
        """Play until the evaluation ends or its coordinator is killed.

        `every` is the share of groups between two looks.
        """
        spool, ledger = Spool(self.store, self.layout), Ledger(self.store, self.layout)
        made = EvalEstimates(self.job, self.layout, self.store, ledger, lambda: self.tariff, None)
        made.before(len(self.rows), {each.name: self._opening(each.name) for each in self.job.candidates})
        ledger.load()
        self.ledger, self.estimates = ledger, made
        names = [each.name for each in self.job.candidates]
        self.evaluation = Evaluation(
            self.job.spec,
            self.rows,
            names,
            spool,
            ledger,
            spool.take_start_number(),
            on_change=lambda: moved(),
        )
        looked = -1.0

        def moved() -> None:
            nonlocal looked
            state = self.evaluation.state
            share = state.groups_done / state.groups_wanted
            if share >= looked + every or state.finished:
                looked = share
                self.look(share)
            if self.fails and len(state.candidates[self.fails].tries) >= self.case.rows // 2:
                state.candidates[self.fails].fail("Lost", "its servers are gone")
            if self.dies_at is not None and share >= self.dies_at:
                self.dies_at = None
                raise Killed

        units = [*self._units()]
        await self.evaluation.restore()
        made.restored()
        self.look(self.evaluation.state.groups_done / self.evaluation.state.groups_wanted)
        await self.evaluation.run(units)

    def look(self, share: float) -> None:
        """Estimate the evaluation, and record the estimate that is shown."""
        with self.estimates._learning:  # no group is billed in between
            if self.case.accelerators:
                ran = self._ran()
                held = {Holder("rollout", "H100"): self.case.accelerators * fsum(ran.values())}
                self.ledger.accelerators(held, BEGAN + max(ran.values(), default=0.0))
            progress = self.estimates.progress(self.evaluation.state)
        self.estimates.show(self.estimates.look(progress))
        found = self.estimates.newest()
        assert found is not None
        self.shown.append(Shown(share, self.cost, found))

    @property
    def cost(self) -> Decimal:
        """US dollars billed so far."""
        return self.tariff.cost(self.ledger.used())

    def _ran(self) -> dict[str, float]:
        """Return how many seconds each unit ran, by the name of its clock."""
        found: dict[str, float] = {}
        for (name, _), groups in self.estimates._tally.groups.items():
            clock = next(each for each in self.clocks if name in each.split("/"))
            ended = [group.ended - BEGAN for group in groups.values()]
            found[clock] = max([found.get(clock, 0.0), *ended])
        return found

    def _opening(self, name: str) -> Opening:
        prompts = [self._prompt(position) for position in range(self.case.rows)]
        endpoint = self.job.spec.entry_of(name).endpoint is not None
        return Opening(exactly(fsum(prompts) / len(prompts)), None if endpoint else CONTEXT)

    def _units(self) -> Iterator[Unit]:
        for number, members in self.job.server_sets.items():
            model = self.job.priced_as(members[0])
            names = tuple(each.name for each in members)
            yield Unit(names, "servers", self._opened(*names), AdaptiveSemaphore(PLACES), number, model=model)
        for each in self.job.candidates:
            asked = self.job.spec.entry_of(each.name)
            opened = self._opened(each.name)
            if asked.endpoint is not None:
                yield Unit(
                    (each.name,), "endpoint", opened, AdaptiveSemaphore(PLACES), model=asked.endpoint.model
                )
            if asked.rescore is not None:
                yield Unit((each.name,), "nobody", opened, AdaptiveSemaphore(PLACES))

    def _opened(self, *names: str) -> Any:
        clock = "/".join(names)
        self.clocks.setdefault(clock, 0.0)

        def runner(name: str) -> Any:
            async def play(task: Task) -> EpisodeRecord:
                await asyncio.sleep(0)
                return self._episode(name, clock, task)

            return play

        @asynccontextmanager
        async def opened() -> AsyncIterator[RunOfCandidate]:
            yield {name: runner(name) for name in names}

        return opened

    def _prompt(self, position: int) -> int:
        return 250 + random.Random(f"prompt/{self.seed}/{position}").randrange(200)

    def _episode(self, name: str, clock: str, task: Task) -> EpisodeRecord:
        """Make an episode, a function of the seed, the candidate, the row and the attempt."""
        position, talk = position_of(task.group_id), self.case.talks.get(name, Talk())
        rng = random.Random(f"{self.seed}/{task.group_id}/{task.index}/{task.attempt}")
        hard = random.Random(f"row/{self.seed}/{position}").lognormvariate(-0.06, 0.35)
        lost = rng.random() < talk.lost
        many = max(1, min(TURNS, round(rng.gauss(talk.turns * hard, 0.7))))
        turns, held = [], self._prompt(position)
        cached = held // 2 if position else 0
        for number in range(many):
            sampled = max(4, min(MAX_TOKENS, int(rng.lognormvariate(0, 0.3) * talk.answer)))
            turns.append(
                Turn(
                    index=number,
                    prompt_tokens=held,
                    cached_tokens=cached,
                    sampled_tokens=sampled,
                    finish_reason="stop",
                    policy_version=PolicyVersion(incarnation=0, step=0),
                )
            )
            cached, held = held, held + sampled + rng.randrange(20, 90)
        seconds = (0.4 if self.job.spec.entry_of(name).rescore else 2.0) * many * rng.uniform(0.8, 1.2)
        self.clocks[clock] += seconds / PLACES
        ended = BEGAN + self.clocks[clock]
        return EpisodeRecord(
            episode_id=f"{task.group_id}-{task.index}-{task.attempt}",
            group_id=task.group_id,
            index=task.index,
            attempt=task.attempt,
            outcome=Outcome.INFRA_ERROR if lost else Outcome.COMPLETED,
            error="lost" if lost else None,
            reward=None if lost else 1.0,
            score=None if lost else 1.0,
            metrics={},
            messages=[],
            turns=turns,
            rows=[],
            judgements=[] if lost or task.suite else [self._judged(rng) for _ in range(self.case.judged)],
            sandbox_seconds=0.0 if lost else seconds,
            started_at=ended - seconds,
            finished_at=ended,
        )

    def _judged(self, rng: random.Random) -> Judgement:
        return Judgement(
            judge="grader",
            question="0" * 64,
            prompt_tokens=rng.randrange(200, 400),
            sampled_tokens=rng.randrange(10, 40),
            model="judge-1",
        )


class Killed(BaseException):
    """A coordinator was killed without notice."""
