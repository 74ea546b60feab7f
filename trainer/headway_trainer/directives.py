"""Decides whether the learner can carry out a directive, and from which checkpoint. A refused directive
changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from headway_api.in_force import DirectiveRefusal, InForce
from headway_api.records import Batch
from headway_api.remedies import NotApplicableError
from headway_trainer.assembly import Assembly
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.manager import CheckpointManager
from headway_trainer.checkpoint.manifest import Checkpoint, IncompleteCheckpointError
from headway_trainer.ranks import Ranks


class Directives:
    """Decides for one learner; collective."""

    def __init__(
        self, parts: Assembly, checkpointer: CheckpointManager, journal: Journal, ranks: Ranks
    ) -> None:
        self._parts = parts
        self._checkpointer = checkpointer
        self._journal = journal
        self._ranks = ranks

    def decide(self, batch: Batch) -> Checkpoint | DirectiveRefusal | None:
        """The outcome for the batch's directive, the same on every rank.

        It is the checkpoint that the directive goes back to, with its files on every node. It is None if the
        directive needs no checkpoint, and a refusal if the learner cannot carry out the directive.
        """
        assert batch.directive is not None
        now, number, restore = self._parts.in_force.number, batch.in_force.number, batch.directive.restore
        if number <= now:
            return DirectiveRefusal(
                reason="TakenBefore",
                message=f"directive {number} was done before: directive {now} is in force; give a new "
                "directive the next number",
            )
        if (refusal := self._parts.obstacle(batch.in_force, rebuilt=bool(restore))) is not None:
            return refusal
        return self._fetched(batch.in_force, restore, batch.step - 1) if restore else None

    def _fetched(self, in_force: InForce, restore: Sequence[int], last: int) -> Checkpoint | DirectiveRefusal:
        skipped = []
        for step in restore:
            found: Checkpoint | str = self._ranks.share(self._found(in_force, step, last))
            why = found
            if isinstance(found, Checkpoint):
                if (fault := self._checkpointer.fetch(found)) is None:
                    return found
                why = fault.why
            skipped.append(f"step {step}: {why}")
        return DirectiveRefusal(
            reason="NothingToRestore",
            message=f"{'; '.join(skipped)}; name a step whose checkpoint is kept "
            "(spec.checkpoints.keepLast, keepBest)",
        )

    def _found(self, in_force: InForce, step: int, last: int) -> Checkpoint | str:
        """The checkpoint of a step, or why the learner cannot go back to it. Only rank 0 looks."""
        if not self._ranks.first:
            return ""
        try:
            found = self._journal.find(step, last)
            own, wanted = self._parts.rank(found.report.in_force), self._parts.rank(in_force)
        except (IncompleteCheckpointError, NotApplicableError) as error:
            return str(error)
        return found if own <= wanted else f"its adapter has rank {own}, but rank {wanted} must be in force"
