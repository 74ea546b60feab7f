"""Runs learners in one set of processes. A list of moves gives each learner its batches and directives.

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
        python tests/support/remedied.py BASE_MODEL FOLDER '{"NAME": {"lora": {...}, "moves": [...]}, ...}'

The learner is the real one, from the artifact store to the weights. The list replaces the coordinator.
FOLDER/NAME.json gets the report of each step, and FOLDER/NAME has the job. The moves:

    {"train": n} train batch n of the rig as the next step. {"directive": {}} take a step without groups:
    `in_force`, `restore`. `number` is the next one by default. {"under": {}} set what is in force for later
    batches, without a directive to this learner. {"start": {}} end the learner and start another one, with
    other settings of the job. It may start with
                        a copy of another job's store ("copy": NAME).
    {"spoil": n}        damage a file of the checkpoint of step n; {"lose": n}: remove the checkpoint.
    {"short": true}     report no free memory from now on; {"short": false}: report the real amount again.
"""

from __future__ import annotations

import json
import shutil
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import learner_rig as rig
import ranks_of
from role_keys import CHECKPOINTS

from headway_api.records import StepReport

LORA = {"rank": 4, "alpha": 8}
WIDE = {"rank": 8, "alpha": 16}


def start(base: Path, folder: Path, cases: Mapping[str, Mapping[str, Any]], processes: int) -> None:
    """Run all cases on `processes` ranks, and wait for them."""
    ranks_of.run(__file__, [str(base), str(folder), json.dumps(cases)], folder, processes)


def reports(folder: Path, name: str) -> list[StepReport]:
    """The reports of a case's learner, from step 0 or from the step at which it resumed."""
    return [StepReport.model_validate(report) for report in json.loads((folder / f"{name}.json").read_text())]


def main() -> None:
    """Run one rank."""
    from headway_trainer.ranks import Ranks
    from headway_trainer.termination import end

    base, folder, cases = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    ranks = Ranks.join()
    for name, settings in cases.items():
        played = _Played(base, folder, name, settings, ranks)
        for move in settings["moves"]:
            ((kind, value),) = move.items()
            getattr(played, kind)(value)
        if ranks.first:
            dumped = [report.model_dump(mode="json") for report in played.reports]
            (folder / f"{name}.json").write_text(json.dumps(dumped))
        ranks.barrier()
    end(0)


class _Played:
    """One case, with a method for each move."""

    def __init__(self, base: Path, folder: Path, name: str, settings: dict[str, Any], ranks: Any) -> None:
        self._base, self._folder, self._name, self._ranks = base, folder, name, ranks
        self._settings = {key: value for key, value in settings.items() if key != "moves"}
        self._learner: Any = None
        self._in_force: Any = None
        self.reports: list[StepReport] = []
        if "start" not in settings["moves"][0]:
            self.start({})

    @property
    def _place(self) -> Path:
        return self._folder / self._name

    def start(self, changes: dict[str, Any]) -> None:
        from headway_api.store import FileStore
        from headway_trainer.learner import Learner

        if self._learner is not None:
            self._learner._parts._take_apart()
        if (other := changes.pop("copy", None)) is not None and self._ranks.first:
            shutil.copytree(self._folder / other / "store", self._place / "store")
        self._ranks.barrier()
        self._settings |= changes
        config = rig.job(self._place, self._base, processes=self._ranks.world, **self._settings)
        self._layout_of(config)
        cache = self._place / "cache"
        self._learner = Learner(config, CHECKPOINTS, FileStore(), self._base, cache, self._ranks, None)
        self._note(self._learner.resume())

    def train(self, n: int) -> None:
        from headway_trainer.stopwatch import Stopwatch

        batch = rig.batch(n, groups=3).model_copy(update={"step": self._next, "in_force": self._in_force})
        prepared = self._learner.prepare(batch)
        self._note(self._learner.train(prepared, self.reports[-1].version.incarnation, Stopwatch()))

    def directive(self, fields: dict[str, Any]) -> None:
        from headway_api.in_force import Directive, InForce
        from headway_api.records import Batch
        from headway_trainer.stopwatch import Stopwatch

        number = fields.get("number", self._in_force.number + 1)
        batch = Batch(
            step=self._next,
            epoch=0,
            groups=[],
            in_force=InForce(number=number, **fields.get("in_force", {})),
            directive=Directive(remedy="RollBack", restore=fields.get("restore", [])),
        )
        before = self._model()
        self._note(self._learner.remedy(batch, self.reports[-1].version.incarnation, Stopwatch()))
        # A replaced model to which a reference remains would fill the accelerator's memory.
        assert before() in (None, self._model()())

    def under(self, in_force: dict[str, Any]) -> None:
        from headway_api.in_force import InForce

        self._in_force = InForce.model_validate(in_force)

    def spoil(self, step: int) -> None:
        self._touch(step, "*.pt", lambda path: path.write_bytes(b"other bytes"))

    def lose(self, step: int) -> None:
        self._touch(step, "*.*", Path.unlink)

    def short(self, short: bool) -> None:
        from headway_trainer import memory

        self._had = getattr(self, "_had", memory.host_memory)
        # Only the last rank has no memory. All ranks have to notice that.
        last = self._ranks.rank == self._ranks.world - 1
        memory.host_memory = (lambda root=None: 0) if short and last else self._had  # type: ignore[assignment]

    @property
    def _next(self) -> int:
        return self.reports[-1].step + 1

    def _model(self) -> Any:
        return weakref.ref(self._learner._parts.engine.model)

    def _note(self, report: StepReport) -> None:
        self.reports.append(report)
        self._in_force = report.in_force
        self._learner.checkpointer.after(report)
        self._learner.checkpointer.settle()

    def _layout_of(self, config: Any) -> None:
        from headway_api.artifacts import Layout

        self._layout = Layout(config.spec.output.uri, config.namespace, config.name, config.uid)

    def _touch(self, step: int, which: str, change: Any) -> None:
        if self._ranks.first:
            folder = Path(self._layout.checkpoint(step).removeprefix("file://"))
            for path in folder.rglob(which):
                change(path)
        self._ranks.barrier()


if __name__ == "__main__":
    main()
