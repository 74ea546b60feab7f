"""Runs a training job's static checks in the order of their dependencies, by `spec.preflight.policy`.

A fault in the bucket, the data or the model fails the job under every policy, because no job runs without
them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from headway_analysis import splits
from headway_analysis.measures import tasks
from headway_api import lora_targets, warm_start
from headway_api import rows as tables
from headway_api.artifacts import Layout
from headway_api.base_model import fetch
from headway_api.exits import JobError, not_final
from headway_api.rows import Row
from headway_api.sandbox_api import ResetReply
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.status import Preflight
from headway_api.store import ObjectNotFoundError, Store, StoreDeniedError, bucket_unavailable
from headway_coordinator.dataset import Data
from headway_coordinator.judges.answering import Judges
from headway_coordinator.preflight import calls, checks, tensors
from headway_coordinator.preflight.checklist import Checklist, rows_message
from headway_coordinator.sandboxes import Broker
from headway_coordinator.trajectory import render
from headway_coordinator.trajectory.template import own_template

MAX_TASKS: Final = 8
_log = logging.getLogger(__name__)


@dataclass
class Ready:
    """What the checks have loaded, and the job needs next."""

    data: Data
    renderer: render.Renderer
    context_length: int
    model: Path
    """Folder with the base model's configuration and tokenizer."""
    template: str
    """The base model's chat template."""


class Runner(Checklist):
    """The static checks of a training job's preflight."""

    def __init__(
        self,
        spec: RLTrainingJobSpec,
        layout: Layout,
        report: Callable[[Preflight], None],
        begun: bool = False,
    ) -> None:
        super().__init__(spec, report, begun)
        self.spec: RLTrainingJobSpec = spec
        self.layout = layout
        self.first: ResetReply | None = None
        """How the environment begins an episode of the first row; None until a sandbox has shown it."""

    def basics(self, store: Store, cache: Path) -> Ready:
        """Check data, model and tokenizer. Blocking: run it in a thread.

        Raises:
            JobError: something is missing, under every policy.
        """
        spec = self.spec
        train = self._need(
            "Dataset", lambda: tables.load(spec.data.train, store, "spec.data.train"), rows_message
        )
        validation: list[tables.Row] = []
        if (held_out := spec.data.validation) is not None:
            rows = self._need(
                "Validation", lambda: tables.load(held_out, store, "spec.data.validation"), rows_message
            )
            validation = rows[: spec.evaluation.max_rows]
        test: list[Row] = []
        if (judged := spec.data.test) is not None:
            test = self._need("Test", lambda: tables.load(judged, store, "spec.data.test"), rows_message)
            if judged.cluster_column is not None:
                tables.check_column(test, judged.cluster_column, "spec.data.test.clusterColumn")
        data = Data(train=train, validation=validation, test=test)
        self._overlaps(data)
        self._tasks(data)
        self._need("Batch", lambda: checks.batch(len(train), spec), str)
        folder = self._need(
            "Model",
            lambda: fetch(spec.model, store, cache, weights=False),
            lambda _: f"{spec.model.base} exists",
        )
        length = self._need(
            "ContextLength",
            lambda: checks.context_length(folder, spec.model.base, spec.model.context_length),
            lambda n: f"{n} tokens",
        )
        self._need("Weights", lambda: tensors.whole(spec.model, folder, store), str)
        modules: list[str] | None = None
        lora, start = spec.model.effective_lora, spec.model.warm_start
        # A job that resumes does not need the weights that it started from, and they may be deleted.
        if start is not None and self._resumes(store):
            start = None
        if lora is not None and (lora.targets or start is not None):
            modules = self._need(
                "LoraTargets",
                lambda: checks.lora_modules(lora, tensors.shapes(spec.model, folder, store)),
                lambda found: f"linear modules are {lora_targets.ends(found)}",
            )
        if start is not None:
            self._need(
                "WarmStart",
                lambda: warm_start.fetch(spec.model, folder, store, cache, weights=False, modules=modules),
                lambda start: start.sentence,
            )
        parser = spec.agent.effective_builtin.tool_call_parser
        chosen, tokenizer = self._need(
            "Tokenizer", lambda: render.load(folder, parser), lambda loaded: checks.renderer(loaded[0])
        )
        return Ready(data, chosen, length, folder, own_template(tokenizer))

    def _tasks(self, data: Data) -> None:
        """If the spec names a column of tasks, check that each row has a task.

        Metrics show a bounded number of tasks.

        Raises:
            JobError: `ColumnMissing`, or `TaskUnknown`: no training row has a task with a weight.
        """
        spec = self.spec.data
        for name, block in (("train", spec.train), ("validation", spec.validation), ("test", spec.test)):
            column = block.task_column if block is not None else None
            if column is None:
                continue
            rows: Sequence[Row] = getattr(data, name)
            found = self._need(
                f"{name.capitalize()}Tasks",
                partial(checks.tasks, rows, column, f"spec.data.{name}"),
                _task_counts,
            )
            data.tasks[name] = tasks.bounded(found)
            if name == "train" and spec.task_weights:
                self._need("TaskWeights", partial(checks.task_weights, found, spec.task_weights), str)

    def _overlaps(self, data: Data) -> None:
        """Check that no row of the validation or test split is also a training row.

        Raises:
            JobError: `SplitsOverlap`, if the policy is Enforce.
        """
        spec, policy = self.spec.data, self.spec.preflight.policy
        rows = {"train": data.train, "validation": data.validation, "test": data.test}
        columns = {name: block.prompt_column for name in rows if (block := getattr(spec, name)) is not None}
        found = splits.of_job(rows, columns)
        if policy == "Off" or len(found) < 2:
            return
        try:
            with not_final(self.begun):
                warnings = splits.check(found, allowed=spec.allow_overlap)
        except JobError as error:
            self._failed("Overlap", error)
            if policy == "Warn":
                return
            if error.permanent:
                self.report(Preflight(state="Failed", checks=self.results))
            raise
        message = "; ".join(warnings) or "no split has a row of another one, or a prompt twice"
        self._passed("Overlap", message, warning=bool(warnings))

    def _resumes(self, store: Store) -> bool:
        """Whether the learner has a step to resume from. The learner decides whether that step is usable."""
        try:
            store.get(self.layout.latest)
        except ObjectNotFoundError:
            return False
        except StoreDeniedError as error:
            with not_final(self.begun):
                raise bucket_unavailable(self.layout.latest, error) from error
        return True

    @property
    def samples(self) -> bool:
        """Whether the preflight also judges baseline episodes before it ends."""
        return self.spec.preflight.policy != "Off" and self.spec.preflight.episodes > 0

    async def environment(
        self, ready: Ready, broker: Broker, start_number: int, judges: Judges | None = None
    ) -> None:
        """Check import, reset and judgement in one real sandbox, and run the checks that need its prompt.

        This ends the preflight, unless baseline episodes follow (`samples`).

        Raises:
            JobError: a check failed and the policy is Enforce, or no sandbox was available.
        """
        if self.spec.preflight.policy == "Off":
            self.report(Preflight(state="Skipped", checks=self.results))
            return
        found = await self._visit(ready.data.train[0], broker, start_number, judges)
        if found is not None:
            first, reply = found
            self.first = first
            self._try("Reward", lambda: checks.reward(reply, self.spec))
            self._tool_calls(first, ready.renderer)
            self._try(
                "Context", lambda: checks.context(first, ready.renderer, ready.context_length, self.spec)
            )
        enforce = self.spec.preflight.policy == "Enforce"
        if not self.samples or (enforce and self.failed):
            self.conclude(enforce=enforce)

    def _tool_calls(self, first: ResetReply, renderer: render.Renderer) -> None:
        agent = self.spec.agent
        try:
            message = calls.readable(first.tools, renderer, agent.effective_builtin.tool_call_parser)
        except JobError as error:
            self._failed("ToolCalls", error)
            return
        concerns = calls.concerns(first.tools, renderer, builtin=agent.is_builtin)
        self._passed("ToolCalls", "; ".join([message, *concerns]), warning=bool(concerns))


def _task_counts(named: Sequence[str]) -> str:
    """The check's message: the number of tasks, and the largest tasks with their number of rows."""
    counts = Counter(named)
    largest = ", ".join(f"{task} ({count})" for task, count in counts.most_common(MAX_TASKS))
    return f"{len(counts)} tasks, with rows: {largest}{', ...' if len(counts) > MAX_TASKS else ''}"
