"""The learner: takes a batch, steps, publishes the weights, announces the step, makes it durable.

    start     fetch and load the model, resume from `latest.json` or make step 0 durable, announce
    loop      ask for batch n+1 -> advantages, optimizer steps -> weights -> announce n+1 -> checkpoint
    end       410 from the coordinator: a last checkpoint, exit 0; SIGTERM: the same, exit 143; no word from
              the coordinator for `PATIENCE`: the same, exit 43, and it is started again

Only rank 0 speaks with the coordinator; the ranks see the same batch and take the same decisions. Killed at
any point it resumes at the last step that was made durable: the steps after it are taken anew, from the same
groups.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headway_api import config as job_config
from headway_api import names
from headway_api.artifacts import Layout, by_step
from headway_api.base_model import fetch
from headway_api.config import JobConfig
from headway_api.exits import JobError, leave, not_final
from headway_api.objective import episode_tokens
from headway_api.records import Batch, Finished, PolicyVersion, StepReport
from headway_api.spec.model import ModelSpec
from headway_api.store import Store, open_store
from headway_trainer import layout, warm_start
from headway_trainer import model as models
from headway_trainer.batch import TrainingBatch, mini_batches, training_batch
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.keeper import Keeper
from headway_trainer.checkpoint.retention import due, expired_weights
from headway_trainer.coordinator import LONG_POLL, AnnounceFirst, Coordinator, Unreachable
from headway_trainer.engine import Engine
from headway_trainer.logs import log
from headway_trainer.metrics import step_metrics
from headway_trainer.objective.presets import Objective
from headway_trainer.policy import Policy
from headway_trainer.probes import Probes
from headway_trainer.publish.links import built_on, delta_steps
from headway_trainer.publish.publisher import Publisher
from headway_trainer.publish.sender import Sender, sender_of
from headway_trainer.ranks import Ranks
from headway_trainer.step import StepResult, optimizer_step, refuse_broken, with_old
from headway_trainer.termination import EXIT, HOLD, end, exit_on_sigterm, live

SHORT_POLL: Final = 2.0
"""Seconds that the ranks are apart at most while there is something to save when SIGTERM comes."""
MOST_TOKENS: Final = {"cuda": 16384, "cpu": 4096}
"""Tokens of one micro-batch. A CPU gains nothing from more, and pays in memory."""


@dataclass
class Stopwatch:
    """Seconds spent, by name."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start


class Learner:
    """Weights and optimizer of one job, and the artifacts they leave; every method is collective."""

    def __init__(
        self, config: JobConfig, store: Store, base: Path, cache: Path, ranks: Ranks, sender: Sender | None
    ) -> None:
        """`base` holds the base model's files; `cache` is scratch that the ranks of a node share."""
        spec = config.spec
        self._spec = spec
        self._store = store
        self._ranks = ranks
        self._layout = Layout(spec.output.uri, config.namespace, config.name, config.uid)
        self._journal = Journal(store, self._layout)
        self._scratch = cache / "learner"
        self._objective = Objective.of(spec.algorithm, episode_tokens(spec))
        model = warm_start.load(config, store, base, cache, ranks)
        if spec.learner.recomputes_activations(accelerated=ranks.device.type == "cuda"):
            models.save_memory(model)
        quadratic = layout.quadratic_share(model)
        self._engine = Engine(model, spec.learner.deepspeed, spec.optimizer, ranks)
        self._policy = Policy(
            self._engine,
            model,
            temperature=spec.rollout.sampling.temperature,
            frozen=models.reference(base, spec, ranks.device),
        )
        choice = layout.choose(self._policy, ranks.device, quadratic)
        _require_one({(c.layout.packed, c.attention, c.head) for c in ranks.gather(choice)})
        scratch = self._scratch / "weights"
        self._publisher = Publisher(self._engine, self._policy, spec, base, scratch, ranks, sender)
        self.keeper = Keeper(
            spec.checkpoints,
            self._engine,
            store,
            self._layout,
            self._journal,
            self._scratch / "checkpoint",
            ranks,
        )
        self._max_tokens = spec.learner.micro_batch_tokens or MOST_TOKENS[ranks.device.type]
        log("objective", **self._objective.expanded())
        log(
            "layout",
            packed=choice.layout.packed,
            attention=choice.attention,
            head=choice.head,
            why=choice.why,
            micro_batch_tokens=self._max_tokens,
        )

    def resume(self) -> StepReport:
        """Take up the newest durable step, or make step 0 durable: the untrained weights."""
        latest: StepReport | None = self._ranks.share(self._journal.latest() if self._ranks.first else None)
        if latest is None:
            log("new job")
            report = self._finish(PolicyVersion(incarnation=0, step=0), None, [], Stopwatch())
            # Announced before it is durable, it could not be told from a step 0 made anew.
            self.keeper.save(report)
            self.keeper.settle()
            return report
        self.keeper.restore(latest)
        self._publisher.offer_again(latest.weights)
        if self._ranks.first:
            self._journal.confirm(latest)
        log("resumed", step=latest.step, version=str(latest.version))
        return latest

    def train(self, batch: TrainingBatch, incarnation: int, before: Stopwatch) -> StepReport:
        """Train one batch, publish its weights and put its step on record. Without a gradient the version
        advances too.

        `before` are the seconds since the step before was put on record.
        """
        watch = Stopwatch(dict(before.seconds))
        with watch("policy_update"):
            parts = with_old(
                self._policy,
                self._objective,
                mini_batches(batch, self._spec.algorithm.updates_per_batch, self._objective),
                ranks=self._ranks,
                max_tokens=self._max_tokens,
            )
            updates = [
                optimizer_step(
                    self._engine,
                    self._policy,
                    self._objective,
                    rows,
                    ranks=self._ranks,
                    max_tokens=self._max_tokens,
                )
                for rows in parts
            ]
        refuse_broken(updates, batch.step)
        version = PolicyVersion(incarnation=incarnation, step=batch.step)
        return self._finish(version, batch, updates, watch)

    def prepare(self, batch: Batch) -> TrainingBatch:
        """Rows and advantages of a batch; rank 0 alone has it before it is shared."""
        return training_batch(batch, self._objective)

    def export(self, newest: StepReport) -> None:
        """Have the newest weights lie whole in the store, to serve as they are."""
        self._publisher.complete(self._store, newest.weights)

    def prune(self, latest: int, validated: Sequence[int]) -> None:
        """Delete what is no longer kept of the steps up to `latest`; `validated` steps come best first."""
        if not self._ranks.first:
            return
        every, lag = self._spec.evaluation.every_steps, self._spec.algorithm.max_steps_off_policy
        checkpoints = self.keeper.prune(validated)
        folder = self._layout.all_weights
        uris = self._store.list(folder)
        weights = by_step(uris, folder)
        planned = [step for step in weights if every and due(step, every)]
        old = expired_weights(weights.keys(), latest, lag, checkpoints, [*planned, *validated])
        # evaluation.everySteps may have been another number, and a validation may be under way.
        unseen = [step for step in old if not self._store.list(self._layout.validation_groups(step))]
        needed = built_on(weights.keys() - set(unseen), delta_steps(uris, folder))
        self._store.delete(uri for step in unseen if step not in needed for uri in weights[step])

    def _finish(
        self,
        version: PolicyVersion,
        batch: TrainingBatch | None,
        updates: list[StepResult],
        watch: Stopwatch,
    ) -> StepReport:
        step, layout = version.step, self._layout
        with watch("publish_weights"):
            weights = self._publisher.publish(self._store, layout.weights(step), version)
        whole = sum(watch.seconds.values())
        waited = watch.seconds.get("wait_for_batch", 0.0)
        seconds = watch.seconds | {"training": whole - waited, "step": whole}
        report = StepReport(
            step=step,
            version=version,
            groups=list(batch.group_ids) if batch else [],
            train_tokens=batch.train_tokens if batch else {},
            weights=weights,
            durable=max(0, self.keeper.durable),
            metrics=step_metrics(batch, updates, seconds) if batch else {},
        )
        if self._ranks.first:
            self._journal.take(report)
        return report


def _require_one(choices: Collection[tuple[bool, str, str]]) -> None:
    """Each rank plans the whole step: with another layout it would train other rows than the rest expect.

    Raises:
        JobError: `RanksDiffer`.
    """
    if len(choices) > 1:
        raise JobError(
            "RanksDiffer",
            f"the processes of the learner chose different layouts of rows ({sorted(choices)}); give them "
            "nodes of one kind",
            field="spec.learner.podTemplate",
            permanent=False,
        )


@dataclass(frozen=True)
class Word:
    """What rank 0 heard, for all ranks."""

    received: TrainingBatch | Finished | Unreachable | None
    durable: int
    """The newest step that a restart would resume from."""
    validated: tuple[int, ...] = ()
    """Validated steps, the best first; said with a batch."""


def serve(
    learner: Learner, coordinator: Coordinator | None, ranks: Ranks, probes: Probes | None
) -> Finished | None:
    """Train batch after batch until the coordinator has no more, or SIGTERM (None); only rank 0 has a
    coordinator. What was trained is durable then.

    Raises:
        Unreachable: the coordinator stayed away; what was trained is durable then too.
    """
    report = learner.resume()
    if coordinator:
        coordinator.announce(report)
    if probes:
        probes.ready = True
    watch = Stopwatch()
    while True:
        with watch("wait_for_batch"):
            if coordinator:
                with suppress(Unreachable):  # `_next` tries once more, and tells every rank
                    report = _said_again(learner, coordinator, report)
            word = ranks.share(_next(learner, coordinator, report) if coordinator else Word(None, -1))
        learner.keeper.check()
        if probes:
            probes.beat()
        # Held on every rank alike, and let go on none before rank 0 knows that all is durable.
        HOLD.set(word.durable < report.step)
        stopped = bool(ranks.maximum([HOLD.asked])[0])
        if stopped or isinstance(word.received, Finished | Unreachable):
            HOLD.set(True)  # an operator that hears that the job is over ends the learner
            learner.keeper.save(report)
            learner.keeper.settle()
            if isinstance(word.received, Unreachable) and not stopped:
                raise word.received
            if not isinstance(word.received, Finished):
                return None
            learner.export(report)
            learner.prune(report.step, word.received.validated)
            if coordinator:
                _said_again(learner, coordinator, report)
            return word.received
        if word.received is None:
            continue
        report = learner.train(word.received, report.version.incarnation, watch)
        HOLD.set(True)
        watch = Stopwatch()
        if coordinator:
            with suppress(Unreachable):  # as above
                coordinator.announce(report, give_up=lambda: HOLD.asked)
        with watch("save_checkpoint"):
            learner.keeper.after(report)
        learner.prune(report.step, word.validated)
        if ranks.first:
            log("step", step=report.step, version=str(report.version), **report.metrics)


def _next(learner: Learner, coordinator: Coordinator, report: StepReport) -> Word:
    durable = learner.keeper.durable
    try:
        answer = _asked(coordinator, report)
    except Unreachable as away:
        return Word(away, durable)
    if isinstance(answer, Batch):
        return Word(learner.prepare(answer), durable, tuple(answer.validated))
    return Word(answer, durable)


def _asked(coordinator: Coordinator, report: StepReport) -> Batch | Finished | None:
    try:
        return coordinator.poll(report.step + 1, SHORT_POLL if HOLD.held else LONG_POLL)
    except AnnounceFirst as unknown:
        log("announced again", why=str(unknown))
        coordinator.announce(report, give_up=lambda: HOLD.asked)
        return None


def _said_again(learner: Learner, coordinator: Coordinator, report: StepReport) -> StepReport:
    """`report` as it is now; announced again where a newer step has become durable."""
    durable = learner.keeper.durable
    if durable <= report.durable:
        return report
    report = report.model_copy(update={"durable": durable})
    coordinator.announce(report, give_up=lambda: HOLD.asked)
    return report


def run(environ: Mapping[str, str]) -> None:
    """The whole life of one learner process.

    Raises:
        JobError: what a person must mend, or what may pass when the process is started again.
    """
    started = time.monotonic()
    config = job_config.load(environ)
    token = job_config.load_token(environ)
    cache = Path(environ.get(names.ENV_CACHE, names.CACHE_DIR))
    with not_final():  # the preflight has used this bucket already
        store = open_store(config.spec.output)
    with ThreadPoolExecutor(1) as background:
        # Ranks of a node share the folder: one fetches, while all of them import and meet.
        here = _first_here(environ)
        fetching = background.submit(_fetch, config.spec.model, store, cache) if here else None
        ranks = Ranks.join()
        folders = ranks.gather(fetching.result() if fetching else None)
    base = folders[ranks.rank - ranks.local_rank]
    assert base is not None
    sender = sender_of(config, token, environ, ranks)
    learner = Learner(config, store, base, cache, ranks, sender)
    log("loaded", seconds=round(time.monotonic() - started, 1), processes=ranks.world)
    probes = (
        Probes(int(environ.get(names.ENV_PROBE_PORT, names.PORT_LEARNER))) if ranks.local_rank == 0 else None
    )
    coordinator = Coordinator(_coordinator_url(config, environ), token) if ranks.first else None
    finished = serve(learner, coordinator, ranks, probes)
    if sender is not None:
        sender.close()
    if finished is None:
        log("stopped")
        end(EXIT)
    log("finished", reason=finished.reason)
    ranks.leave()


def _fetch(model: ModelSpec, store: Store, cache: Path) -> Path:
    with not_final():  # the preflight has seen that it is there
        return fetch(model, store, cache)


def _first_here(environ: Mapping[str, str]) -> bool:
    return environ["LOCAL_RANK"] == "0"


def _coordinator_url(config: JobConfig, environ: Mapping[str, str]) -> str:
    return environ.get(names.ENV_COORDINATOR_URL, config.coordinator_url)


def main() -> None:
    """Entry point of every rank."""
    exit_on_sigterm()
    live(_explained)


def _explained() -> None:
    try:
        run(os.environ)
    except JobError as error:
        leave(error)


if __name__ == "__main__":
    main()
