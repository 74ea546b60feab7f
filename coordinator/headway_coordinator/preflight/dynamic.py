"""The preflight's second half: baseline episodes of the untrained model, and the checks on them.

kept            if a result of this job or of an equal one is stored, it is read, and nothing is sampled
sampling        one rollout server samples groups, until there are enough or a failure is certain. The
                operator runs the server while the status asks for it. `headway doctor` may name an endpoint
                instead
playing         the checks' scripts are played in sandboxes, without a model
over            findings are stored, shown, and judged by the policy; only then does a learner start
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Final, Literal

import aiohttp

from headway_analysis.estimate.plan import Plan
from headway_analysis.estimate.whole import Price
from headway_analysis.preflight import expected, report, run
from headway_analysis.preflight.checks import judge_varies
from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import Baseline, Facts, Probe
from headway_api import logs, names
from headway_api.artifacts import Layout
from headway_api.baseline_endpoint import BaselineEndpoint
from headway_api.exits import JobError
from headway_api.prices import DEFAULT, PriceBook
from headway_api.records import EpisodeRecord, Purpose
from headway_api.sandbox_api import PoolState
from headway_api.spec.algorithm import BY_REWARDS
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.status import Check, Preflight
from headway_api.store import Store
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.episode_runners import EpisodeRunners
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.metrics.prometheus import Sample
from headway_coordinator.preflight import keyed, parsers, probes, shown, start
from headway_coordinator.preflight.asking import Asker
from headway_coordinator.preflight.baseline import BaselineSampler
from headway_coordinator.preflight.evidence import Notebook
from headway_coordinator.preflight.judges_bill import JudgesBill
from headway_coordinator.preflight.run import Ready, Runner
from headway_coordinator.preflight.scripted import Player
from headway_coordinator.preflight.source import AtEndpoint, OnServer, Source
from headway_coordinator.recurring import Recurring
from headway_coordinator.sandboxes import Broker
from headway_coordinator.spool import Spool
from headway_coordinator.stall import Blocker, Watch, of_episodes

ISOLATED: Final = "isolated"
FAILED: Final = "PreflightFailed"
READ_BACK: Final = "read back from an equal preflight"
CUT_SHORT: Final = "sampling ended early"
_log = logging.getLogger(__name__)


@dataclass
class Dynamic:
    """The second half of one job's preflight. All of its state changes on the event loop only."""

    spec: RLTrainingJobSpec
    layout: Layout
    ready: Ready
    runner: Runner
    """The runner of the static checks, which have ended."""
    store: Store
    spool: Spool
    ledger: Ledger
    broker: Broker
    episode_runners: EpisodeRunners
    http: aiohttp.ClientSession
    key: str
    """The coordinator's key for rollout servers."""
    discover: Discover
    start_number: int
    faults: Recurring
    opened: Callable[[], None]
    """Called when sampling begins. From then on, this process reports that it is ready."""
    changed: Callable[[], None]
    """Called when something in status or metrics has changed."""
    on_episode: Callable[[EpisodeRecord], None] = lambda record: None
    book: PriceBook = DEFAULT
    """The prices of the job's bill."""
    plan: Plan | None = None
    """The number of episodes that the job will play."""
    price: Price | None = None
    """Today's prices, as in the job's bill."""
    endpoint: BaselineEndpoint | None = None
    """The endpoint that samples the baseline instead of the job's model; None: the job's model samples."""
    sampler: BaselineSampler | None = None
    findings: list[Finding] = field(default_factory=list)
    kept: keyed.Kept | None = None
    _state: Literal["Sampling", "Running"] = "Sampling"
    _watch: Watch | None = None
    _player: Player | None = None
    """The player of the scripts, once there are any."""
    _asker: Asker | None = None
    """Asks judges the questions of baseline episodes again, once there are any."""

    async def run(self, *, begun: bool) -> None:
        """Return once the job may train.

        Args:
            begun: whether training has begun already. If so, nothing is sampled any more.

        Raises:
            JobError: `PreflightFailed`, with the failed checks; or the reason of a recurring fault.
        """
        if not self.runner.samples:
            return
        key = await asyncio.to_thread(
            keyed.key_of,
            self.spec,
            self.ready.data,
            self.ready.model,
            self.layout.uid,
            self.store,
            self.endpoint,
        )
        kept = await asyncio.to_thread(keyed.read_back, self.store, self.layout, key, begun=begun)
        if kept is not None and kept.cut and not begun and not self._stops(kept.findings):
            kept = None
        read_back = kept is not None
        if kept is None and begun:
            self.runner.conclude(enforce=False)
            return
        if kept is None:
            kept = await self._made(key)
        else:
            logs.event(_log, "preflight-read-back", key=kept.key, job=kept.job)
        if not read_back or kept.job != self._name:
            kept = kept.model_copy(update={"key": key})
            await asyncio.to_thread(keyed.keep, self.store, self.layout, kept, report.markdown(kept.document))
        self._conclude(kept, READ_BACK if kept.job != self._name else None, begun=begun)

    @cached_property
    def _bill(self) -> JudgesBill:
        return JudgesBill(self.store, self.layout, self.ledger)

    @property
    def _name(self) -> str:
        return f"{self.layout.namespace}/{self.layout.name}/{self.layout.uid}"

    async def _made(self, key: str) -> keyed.Kept:
        """Sample the baseline, play the scripts, and run the checks. Returns the result."""
        source, notebook = await self._source(), Notebook()
        self._state, note = source.state, source.note
        sampler = self.sampler = BaselineSampler(
            self.spec, self.ready.data, self._facts(source.model), self.ready.renderer, self.layout,
            self.store, self.spool, self.ledger, self.start_number, source, notebook, self.faults,
            self.episode_runners.budget, self.episode_runners.limits, self._certain, self._moved,
            self.on_episode, self.episode_runners.relative.witnessed(notebook.of),
        )  # fmt: skip
        tried = await self._probed("start")  # in a sandbox that exists already
        await sampler.restore()
        await self._bill.restore()
        self.opened()
        self._moved()
        answered = sampler.ended > 0
        async with self._watched(source), source.serving(answered=answered):
            cut = await sampler.run(source.episode(self.episode_runners, notebook.of))
        baseline = dataclasses.replace(await self._read_again(sampler.baseline), probes=tried)
        if cut is None:
            findings = await self._judged(baseline, source.limiter)
        else:
            logs.event(_log, "preflight-certain", check=cut.check, episodes=sampler.ended)
            note = "; ".join(filter(None, [CUT_SHORT, note]))
            findings = await asyncio.to_thread(self._so_far, baseline, cut)
        document = await asyncio.to_thread(report.document, baseline, findings)
        return keyed.Kept(
            key=key,
            job=self._name,
            episodes=sampler.ended,
            wanted=sampler.wanted,
            note=note,
            cut=cut is not None,
            findings=keyed.storable(findings),
            document=dict(document),
            # An endpoint's usage and speed say nothing about the job's own servers.
            measured=None if source.model else expected.measured(baseline),
            seconds_each=None if source.model else expected.seconds_each(baseline),
        )

    async def _source(self) -> Source:
        if self.endpoint is not None:
            return AtEndpoint(self.spec, self.endpoint)
        weights = await asyncio.to_thread(start.manifest, self.spec.model, self.store)
        return await OnServer.of(self.spec, weights, self.http, self.key, self.discover)

    @asynccontextmanager
    async def _watched(self, source: Source) -> AsyncIterator[None]:
        """During the block, watch whether episodes end. If none ends, the status shows what they wait for."""
        assert self.sampler is not None
        sampler, seconds = self.sampler, self.spec.rollout.timeout_seconds

        def blame(pool: PoolState | str) -> Blocker:
            return of_episodes(source.problem(), pool, self.faults, sampler.in_flight, seconds)

        def idle() -> float:
            return time.monotonic() - sampler.moved_at

        self._watch = Watch(idle, blame, self.broker.pool, self._moved)
        task = asyncio.create_task(self._watch.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._watch = None

    async def _judged(self, baseline: Baseline, limiter: AdaptiveSemaphore) -> list[Finding]:
        own = self.spec.preflight.checks
        tried = [*baseline.probes, *await self._probed("before")]
        scripts = await asyncio.to_thread(run.scripts_of, baseline, own)
        logs.event(_log, "preflight-scripts", scripts=len(scripts))
        name, judges = f"preflight-script-{self.start_number}", self.episode_runners.judges
        bill = self._bill.add
        self._player = Player(self.spec, self.broker, limiter, name, judges, bill, self._moved)
        played = await self._player.play(scripts)
        tried += await self._probed("after")  # in a sandbox that replaced a script's
        self._asker = Asker(judges, bill, f"preflight-judge-{self.start_number}", self._moved)
        questions = [] if own.get(judge_varies.ID) == "Off" else judge_varies.questions(baseline)
        twice = await self._asker.ask(questions)
        facts = dataclasses.replace(baseline.facts, relative=self._player.grouped)
        baseline = dataclasses.replace(baseline, facts=facts, probes=tried, asked_twice=twice)
        return await asyncio.to_thread(run.findings, baseline, played, own)

    async def _probed(self, when: str) -> list[Probe]:
        """The addresses that a sandbox tried, and which of them it reached; empty if the check is off."""
        if self.spec.preflight.checks.get(ISOLATED) == "Off":
            return []
        lease = f"preflight-probe-{self.start_number}-{when}"
        return await probes.probe(self.spec, self.broker, lease, probes.destinations())

    async def _read_again(self, baseline: Baseline) -> Baseline:
        """The baseline, with the number of malformed calls that each other parser could parse."""
        own = baseline.facts.tool_call_parser
        found = await asyncio.to_thread(parsers.would_read, self.ready.model, own, baseline.sampled)
        return dataclasses.replace(baseline, facts=dataclasses.replace(baseline.facts, other_parsers=found))

    def _so_far(self, baseline: Baseline, cut: Finding) -> list[Finding]:
        """The findings on the episodes so far, without scripts, for sampling that ended early.

        They may show why nothing succeeds. `cut` is the finding that ended sampling.
        """
        found = run.findings(baseline, (), self.spec.preflight.checks)
        return [cut if each.check == cut.check else each for each in found]

    def _certain(self, baseline: Baseline) -> Finding | None:
        """A failure that no later episode would change, and that ends the job; None if there is none."""
        asked = self.spec.preflight
        if "Enforce" not in (asked.policy, *asked.checks.values()):
            return None
        found = run.certain_failure(baseline, asked.checks)
        return found if found is not None and self._stops([found]) else None

    def _stops(self, findings: list[Finding]) -> list[Finding]:
        policy = self.spec.preflight
        return list(run.verdict(findings, policy.policy, policy.checks).stops)

    def _moved(self) -> None:
        assert self.sampler is not None
        self.runner.report(
            Preflight(
                state=self._state,
                checks=self.runner.results,
                episodes=self.sampler.ended,
                wanted_episodes=self.sampler.wanted,
                waits_for=self._waits_for,
            )
        )
        self.changed()

    @property
    def _waits_for(self) -> Check | None:
        stalled = self._watch.stalled if self._watch is not None else None
        parts: tuple[Player | Asker | None, ...] = (self._player, self._asker)
        for part in parts:
            stalled = stalled if part is None else next(iter(part.waiting.values()), stalled)
        return (
            None
            if stalled is None
            else Check(name=names.CHECK_BASELINE, passed=False, message=stalled[:1024])
        )

    def _conclude(self, kept: keyed.Kept, how: str | None, *, begun: bool) -> None:
        """Report the result of the preflight, and end it.

        Raises:
            JobError: `PreflightFailed`: a check failed, and by the policy its failure ends the job.
        """
        self.kept, self.findings = kept, list(kept.findings)
        stops = self._stops(self.findings)
        failed = any(finding.verdict == "Fail" for finding in self.findings) or bool(self.runner.failed)
        state = "Failed" if stops and not begun else "Warned" if failed else "Passed"
        self.runner.report(
            Preflight(
                state=state,
                checks=self.runner.results,
                episodes=kept.episodes,
                wanted_episodes=kept.wanted,
                findings=shown.lines(self.findings),
                summary=shown.summary(self.findings, kept.note, how),
            )
        )
        self.changed()
        if state == "Failed":
            sentences = [f"{each.check}: {shown.sentence(each)}" for each in run.gravest_first(stops)]
            raise JobError(FAILED, "; ".join(sentences), field=stops[0].field)

    def _facts(self, endpoint: str | None) -> Facts:
        """The facts about the job for the checks.

        Args:
            endpoint: the name of the endpoint's model; None: the job's own model samples.
        """
        spec, data = self.spec, self.ready.data
        low, high = spec.reward.range
        today = datetime.now(UTC).date()
        return Facts(
            rows=data.train,
            validation=data.validation,
            test=data.test,
            prompt_column=spec.data.train.prompt_column,
            group_size=spec.algorithm.group_size,
            judged=bool(spec.judges),
            batch_size=spec.algorithm.batch_size,
            max_steps=spec.schedule.max_steps,
            success_threshold=spec.evaluation.success_threshold,
            reward_range=(low, high),
            max_turns=spec.agent.turn_limit,
            max_tokens=spec.rollout.sampling.max_tokens,
            context_length=self.ready.context_length,
            contract=spec.environment.contract,
            seed=spec.seed,
            overlap_allowed=spec.data.allow_overlap,
            price=self.price,
            price_edition=self.book.edition(today),
            plan=self.plan,
            trains_alike=spec.algorithm.advantage.method not in BY_REWARDS,
            tool_call_parser=spec.agent.effective_builtin.tool_call_parser,
            endpoint=endpoint,
        )

    def samples(self) -> Iterator[Sample]:
        """The preflight's metrics for Prometheus."""
        if self.kept is not None:
            yield from shown.samples(self.findings, self.kept.episodes, self.kept.wanted)
        elif self.sampler is not None:
            yield from shown.samples([], self.sampler.ended, self.sampler.wanted)
            yield Sample("episodes/in_flight", self.sampler.in_flight, {"purpose": Purpose.PREFLIGHT})
