"""The preflight of an evaluation: checks its rows, one real sandbox, and one sandbox of each suite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from headway_api import rows as tables
from headway_api.config import EvalConfig
from headway_api.exits import JobError
from headway_api.prices import DatedPrices
from headway_api.rows import Row, tasks_of
from headway_api.sandbox_api import ResetReply
from headway_api.seeds import seed
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.suite import Suite, field_in_suite, field_of
from headway_api.status import Preflight
from headway_api.store import Store
from headway_coordinator.faults import InfraError, PermanentInfraError
from headway_coordinator.judges.answering import Judges
from headway_coordinator.preflight import checks, gate
from headway_coordinator.preflight.checklist import LEASE_ID, Checklist, rows_message
from headway_coordinator.sandboxes import Broker

BLOCK = "spec.data"
MAX_TASKS = 64
"""The most tasks of an evaluation. For each task, each candidate has some 70 measures, with the bounds of
their intervals."""


class EvalRunner(Checklist):
    """The preflight of an evaluation. Every check must pass, because people would trust wrong results."""

    def __init__(self, spec: RLEvalJobSpec, report: Callable[[Preflight], None], begun: bool = False) -> None:
        super().__init__(spec, report, begun)
        self.spec: RLEvalJobSpec = spec

    def rows(self, store: Store) -> list[Row]:
        """The rows to measure on. Blocking: run it in a thread.

        Raises:
            JobError: the rows cannot be read, lack a column that the spec names, or have unsuitable tasks.
        """
        found = self._need("Dataset", lambda: self._load(store), rows_message)
        return found[: self.spec.evaluation.max_rows]

    def _load(self, store: Store) -> list[Row]:
        data = self.spec.data
        rows = tables.load(data, store, BLOCK)
        for name, column in (("taskColumn", data.task_column), ("clusterColumn", data.cluster_column)):
            if column is not None:
                tables.check_column(rows, column, f"{BLOCK}.{name}")
        check_tasks(rows[: self.spec.evaluation.max_rows], data.task_column)
        check_suites(rows, data.task_column, [suite.name for suite in self.spec.suites])
        gate.check_tasks(self.spec, rows[: self.spec.evaluation.max_rows])
        return rows

    def gate_prices(self, job: EvalConfig, book: DatedPrices) -> None:
        """Check that the cost is known for a gate that judges a cost.

        Args:
            book: today's prices.

        Raises:
            JobError: `GateCostUnknown`.
        """
        if gate.is_about_cost(self.spec):
            self._need("Gate", lambda: gate.check_prices(job, book), lambda found: found)

    async def environment(
        self,
        row: Row,
        broker: Broker,
        start_number: int,
        suites: Mapping[str, Broker],
        judges: Judges | None = None,
    ) -> ResetReply:
        """Check import, reset and judgement in one real sandbox, and load each suite's task in another.

        Returns how the environment begins the row.

        Args:
            row: the row of the first sandbox.
            broker: the broker of the environment's sandboxes.
            start_number: the number of this process, for the names of leases.
            suites: suite -> the broker of its sandboxes.
            judges: the judges that the environment may ask.

        Raises:
            JobError: a check failed, or no sandbox was available.
        """
        found = await self._visit(row, broker, start_number, judges)
        if found is not None:
            self._try("Reward", lambda: checks.reward(found[1], self.spec))
            self._try("Gate", lambda: gate.check_tools(self.spec, found[0]))
        for suite in self.spec.suites:
            await self._suite(suite, suites[suite.name], start_number)
        self.conclude(enforce=True)
        assert found is not None, "a failed check has raised"
        return found[0]

    async def _suite(self, suite: Suite, broker: Broker, start_number: int) -> None:
        """Check that the suite's image can load the task, and that the task has enough samples."""
        spec, seconds, check = self.spec, suite.sandbox.deadline_seconds, f"Suite {suite.name}"
        lease = f"{LEASE_ID}-{start_number}"
        try:
            async with asyncio.timeout(spec.pending_deadline_seconds):
                async with broker.lease(lease, seconds, spec.rollout.timeout_seconds) as sandbox:
                    await sandbox.reset(suite.last_row, seed(spec.seed, LEASE_ID))
        except PermanentInfraError as fault:
            self._failed(
                check, JobError(fault.reason, str(fault), field=field_in_suite(suite.name, fault.field))
            )
            return
        except (InfraError, TimeoutError) as fault:
            text = str(fault) or f"no sandbox within {spec.pending_deadline_seconds} s"
            field = field_of(suite.name, "image")
            raise JobError("SandboxUnavailable", text, field=field, permanent=False) from fault
        self._passed(check, f"{suite.task} is loaded, and has {suite.limit} samples or more")


def check_tasks(rows: Sequence[Row], task_column: str | None) -> None:
    """Check that no task has the name that means every row, and that there are at most `MAX_TASKS` tasks.

    Raises:
        JobError: `TaskNameTaken`, `TooManyTasks`.
    """
    found = set(tasks_of(rows, task_column) or ())
    checks.task_names(found, str(task_column), BLOCK)
    if len(found) > MAX_TASKS:
        text = (
            f"the rows of {BLOCK} have {len(found)} tasks in column {task_column}. Each gets its own "
            f"measures: name a column with at most {MAX_TASKS} values there, or leave it out"
        )
        raise JobError("TooManyTasks", text, field=f"{BLOCK}.taskColumn")


def check_suites(rows: Sequence[Row], task_column: str | None, names: Sequence[str]) -> None:
    """Check that no suite has the name of a task of the rows, because results are listed by name.

    Raises:
        JobError: `SuiteNameTaken`.
    """
    tasks = set(tasks_of(rows, task_column) or ())
    taken = next((name for name in names if name in tasks), None)
    if taken is not None:
        text = f"rows of {BLOCK} have the task {taken} in column {task_column}; rename the suite"
        raise JobError("SuiteNameTaken", text, field=field_of(taken, "name"))
