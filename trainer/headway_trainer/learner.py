"""The learner: fetches and loads the model, resumes from `latest.json` or makes step 0 durable; then `loop`
has it train batch after batch.

The ranks see the same batch and take the same decisions. Killed at any point it resumes at the last step that
was made durable: the steps after it are taken anew, from the same groups.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from headway_api import config as job_config
from headway_api import names
from headway_api.artifacts import Layout, by_number
from headway_api.base_model import fetch
from headway_api.config import JobConfig
from headway_api.exits import ANEW, JobError, leave, not_final
from headway_api.objective import episode_tokens
from headway_api.records import Batch, PolicyVersion, StepReport
from headway_api.spec.model import ModelSpec
from headway_api.store import Store, open_store
from headway_api.store_away import Patience, store_explained
from headway_trainer import layout, warm_start
from headway_trainer import model as models
from headway_trainer.batch import TrainingBatch, mini_batches, training_batch
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.keeper import Keeper
from headway_trainer.checkpoint.manifest import Checkpoint
from headway_trainer.checkpoint.retention import due, expired_weights
from headway_trainer.coordinator import Coordinator
from headway_trainer.engine import Engine
from headway_trainer.logs import log
from headway_trainer.loop import Stopwatch, serve
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

MOST_TOKENS: Final = {"cuda": 16384, "cpu": 4096}
"""Tokens of one micro-batch. A CPU gains nothing from more, and pays in memory."""


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
        self._sender = sender
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
        latest: Checkpoint | None = self._ranks.share(self._journal.begin() if self._ranks.first else None)
        if latest is None:
            log("new job")
            report = self._finish(PolicyVersion(incarnation=0, step=0), None, [], Stopwatch())
            # Announced before it is durable, it could not be told from a step 0 made anew.
            self.keeper.save(report)
            self.keeper.settle()
            return report
        self.keeper.restore(latest)
        self._publisher.offer_again(latest.report.weights)
        if self._ranks.first:
            self._journal.confirm(latest)
        log("resumed", step=latest.report.step, version=str(latest.report.version))
        return latest.report

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
        refuse_broken(updates, batch.step, self._objective.own_losses)
        version = PolicyVersion(incarnation=incarnation, step=batch.step)
        return self._finish(version, batch, updates, watch)

    def prepare(self, batch: Batch) -> TrainingBatch:
        """Rows and advantages of a batch; rank 0 alone has it before it is shared."""
        return training_batch(batch, self._objective)

    def announced(self) -> None:
        """Servers are told to take the newest weights from now on."""
        if self._sender is not None:
            self._sender.announced()

    def export(self, newest: StepReport) -> None:
        """Have the newest weights lie whole in the store, to serve as they are."""
        self._journal.refuse_superseded()
        self._publisher.complete(self._store, newest.weights)

    def prune(self, latest: int, validated: Sequence[int], validating: Sequence[int] = ()) -> None:
        """Delete what is no longer kept of the steps up to `latest`.

        Args:
            validated: validated steps, the best first.
            validating: steps whose validations are not complete.
        """
        if not self._ranks.first:
            return
        every, lag = self._spec.evaluation.every_steps, self._spec.algorithm.max_steps_off_policy
        checkpoints = self.keeper.prune(validated, validating)
        folder = self._layout.all_weights
        uris = self._store.list(folder)
        weights = by_number(uris, folder)
        planned = [step for step in weights if every and due(step, every)]
        # Of weights that are had from memory the status names the newest ones in the store.
        full_every = self._spec.learner.weights.full_every_steps
        whole = [] if self._sender is None else [latest - latest % full_every]
        compared = [*planned, *validated, *validating, *whole]
        old = expired_weights(weights.keys(), latest, lag, checkpoints, compared)
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
        self._journal.refuse_superseded()
        with watch("publish_weights"):
            weights = self._publisher.publish(self._store, self._layout.weights(version.step), version)
        whole = sum(watch.seconds.values())
        waited = watch.seconds.get("wait_for_batch", 0.0)
        seconds = watch.seconds | {"training": whole - waited, "step": whole}
        report = StepReport(
            step=version.step,
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
        store = open_store(config.spec.output, Patience())
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
        log("stopped", told=HOLD.asked)
        # One that ends because another was told to has not failed, and nobody was rid of its pod.
        end(EXIT if HOLD.asked else ANEW)
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
        with store_explained():
            run(os.environ)
    except JobError as error:
        leave(error)


if __name__ == "__main__":
    main()
