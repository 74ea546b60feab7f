"""A local job whose rows have tasks, and some of whose episodes failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from episodes import a_group
from finished_run import FinishedRun

from headway_api.records import Outcome, Purpose

TALK = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}]


def written(folder: Path, rows: Path) -> FinishedRun:
    """The job in `folder`, with its splits in `rows`.

    Training rows 0 and 2 have the task `refund`, and row 1 has `change`. For held-out rows it is the reverse.
    One training episode ended with AgentError, and one with InfraError. One held-out group was lost.
    """
    data: dict[str, Any] = {}
    for split, tasks in {"train": "refund change refund", "validation": "change refund change"}.items():
        file = rows / f"{split}.jsonl"
        file.write_text("".join(f'{{"prompt": "p", "kind": "{task}"}}\n' for task in tasks.split()))
        data[split] = {"uri": f"file://{file}", "taskColumn": "kind"}
    made = FinishedRun(folder).job(data=data)
    for number, rewards in enumerate(([1.0, 0.0], [0.5, None], [0.25, 0.75])):
        found = a_group(f"t0-{number:06d}", rewards)
        talked = [each.model_copy(update={"messages": TALK}) for each in found.episodes]
        found = found.model_copy(update={"row": number, "abandoned": None, "episodes": talked})
        if number == 2:
            erred = found.episodes[0].model_copy(update={"outcome": Outcome.AGENT_ERROR, "error": "it broke"})
            found = found.model_copy(update={"episodes": [erred, *found.episodes[1:]]})
        made.play(found)
    for number, reward in enumerate((1.0, None)):
        held_out = a_group(f"v000000-{number:06d}", [reward], purpose=Purpose.VALIDATION)
        made.play(held_out.model_copy(update={"row": number}))
    return made
