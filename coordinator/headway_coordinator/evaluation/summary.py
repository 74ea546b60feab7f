"""The stored result of a finished validation. A restarted coordinator reads it instead of the groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Self

from headway_analysis.measures import metrics
from headway_analysis.measures.episodes import Evaluation, rewards, scores, summarize
from headway_analysis.measures.tasks import shown as shown_by_task
from headway_analysis.measures.tasks import summarize as summarize_tasks
from headway_analysis.statistics.estimates import Estimate, of_rows
from headway_api.records import GroupRecord, RowResult, ValidationRecord
from headway_api.spec.trust import MeasureSpec
from headway_coordinator.dataset import position_of


class Summary(ValidationRecord):
    """The result of one validation. It may replace the groups if the store has exactly the same groups."""

    @classmethod
    def of(
        cls,
        step: int,
        groups: Sequence[GroupRecord],
        measure: MeasureSpec,
        max_turns: int | None,
        named: Sequence[str] | None = None,
    ) -> Self:
        """Summarize a validation's groups, one group for each row.

        Args:
            step: the step that was validated.
            groups: the groups.
            measure: how success and pass@k are computed.
            max_turns: as in `metrics.evaluation`.
            named: the task of each row, if rows have tasks.
        """
        threshold = measure.success_threshold
        found = summarize(step, groups, threshold)
        by_task = None if named is None else summarize_tasks(groups, named, threshold)
        rows = {
            group.group_id: RowResult(rewards=rewards(group.scored), scores=scores(group.scored))
            for group in groups
            if group.scored
        }
        shown = metrics.validation(groups, measure.pass_k, threshold, max_turns=max_turns)
        shown |= shown_by_task("val", by_task or {})
        return cls(**found._replace(tasks=by_task)._asdict(), rows=rows, metrics=shown)

    @property
    def evaluation(self) -> Evaluation:
        """The most important numbers of the validation."""
        return Evaluation(**self.model_dump(include=set(Evaluation._fields)))

    def estimate(self) -> Estimate | None:
        """The mean external score with its interval; None if no try has a score.

        The computation may take long, so run it in a thread.
        """
        return of_rows(row.scores for row in self.rows.values())

    @property
    def scored(self) -> dict[int, list[float]]:
        """Row -> the external scores of its tries, or their rewards if the environment gives no scores."""
        return {position_of(group): row.scores or row.rewards for group, row in self.rows.items()}

    def covers(self, groups: Collection[str]) -> bool:
        """Whether the result was computed from exactly the groups with these ids."""
        return set(groups) == set(self.rows)
