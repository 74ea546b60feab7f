"""The preflight of an evaluation: its rows, and one real sandbox."""

from __future__ import annotations

from collections.abc import Callable

from headway_api.sandbox_api import ResetReply
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.status import Preflight
from headway_api.store import Store
from headway_coordinator import dataset
from headway_coordinator.dataset import Row
from headway_coordinator.preflight import checks
from headway_coordinator.preflight.checklist import Checklist, said_of
from headway_coordinator.sandboxes import Broker

BLOCK = "spec.data"


class EvalRunner(Checklist):
    """Every check must pass: figures of a broken environment would be believed."""

    def __init__(self, spec: RLEvalJobSpec, report: Callable[[Preflight], None], begun: bool = False) -> None:
        super().__init__(spec, report, begun)
        self.spec: RLEvalJobSpec = spec

    def rows(self, store: Store) -> list[Row]:
        """The rows to measure on. Blocking: run it in a thread.

        Raises:
            JobError: they cannot be read, or lack a column that the spec names.
        """
        found = self._need("Dataset", lambda: self._load(store), said_of)
        return found[: self.spec.evaluation.max_rows]

    def _load(self, store: Store) -> list[Row]:
        data = self.spec.data
        rows = dataset.load(data, store, BLOCK)
        for name, column in (("taskColumn", data.task_column), ("clusterColumn", data.cluster_column)):
            if column is not None:
                dataset.check_column(rows, column, f"{BLOCK}.{name}")
        return rows

    async def environment(self, row: Row, broker: Broker, incarnation: int) -> ResetReply:
        """One real sandbox: import, reset and judgement. Returns how the environment begins the row.

        Raises:
            JobError: a check failed, or no sandbox was to be had.
        """
        found = await self._visit(row, broker, incarnation)
        if found is not None:
            self._try("Reward", lambda: checks.reward(found[1], self.spec))
        self._conclude(enforce=True)
        assert found is not None, "a failed check has raised"
        return found[0]
