"""The program that runs one sample in its pod: `python3 -m headway_sandbox.suites.program [--check]`.

It asks the candidate for its turns by OPENAI_BASE_URL and OPENAI_API_KEY, like any agent in a sandbox, and
runs the task's own solver and scorers. A sample that fails is not run again here: whoever started the program
tries another sandbox. Written for inspect-ai 0.3.
"""

from __future__ import annotations

import math
import os
import sys

from headway_sandbox.suites import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

CHECK = "--check"
MODEL = "openai-api/openai/default"
"""The provider reads OPENAI_BASE_URL and OPENAI_API_KEY. The gateway has one model, whatever its name."""
RETRIES = 5
"""Of one request that the gateway asks to be sent again. A turn that the platform failed is told as such."""
MESSAGE = 2000
"""Characters of an error that are kept."""


class Unusable(Exception):
    """The suite cannot be run as it is written. `field` is below the suite's."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def main(arguments: list[str]) -> int:
    """Run the sample, or only check that it could be; 1 where that failed."""
    asked = files.read(files.ASKED)
    assert asked is not None, "the environment's reset comes first"
    try:
        answer = check(asked) if CHECK in arguments else scored(asked)
    except Unusable as error:
        answer = {"error": {"field": f"suite.{error.field}", "message": str(error)[:MESSAGE]}}
        print(error, file=sys.stderr)
    files.write(files.FOUND, answer)
    return int("error" in answer)


def check(asked: Mapping[str, Any]) -> dict[str, Any]:
    """How many samples the task has.

    Raises:
        Unusable: it cannot be loaded, has no such sample, or cannot be run in a pod.
    """
    try:
        import openai  # noqa: F401  (of Inspect's provider)
        from inspect_ai._eval.loader import load_tasks, resolve_task_args
    except ImportError as error:
        text = f"{error}: install inspect-ai and openai into the image; see examples/suites/Dockerfile"
        raise Unusable("image", text) from error
    task, again = (one(load_tasks, asked) for _ in range(2))
    if unknown := sorted(asked["args"].keys() - resolve_task_args(task).keys()):
        raise Unusable("args", f"the task takes no argument {', '.join(unknown)}; remove it")
    samples = len(task.dataset)
    if asked["sample"] >= samples:
        text = f"{asked['sample'] + 1} is more than the task's {samples} samples; write at most {samples}"
        raise Unusable("limit", text)
    if not task.scorer:
        raise Unusable("task", "the task has no scorer; name one that judges its samples")
    if task.sandbox is not None or any(sample.sandbox is not None for sample in task.dataset):
        text = "the task runs its tools in a sandbox of Inspect's own, which a pod cannot start"
        raise Unusable("task", f"{text}; name a task whose tools need none")
    if [sample.input for sample in task.dataset] != [sample.input for sample in again.dataset]:
        text = "the task puts its samples into another order each time; have it shuffle with a fixed seed"
        raise Unusable("task", text)
    return {"samples": samples}


def one(load: Any, asked: Mapping[str, Any]) -> Any:
    """The task that is named.

    Raises:
        Unusable: there is none, or several.
    """
    name, hint = asked["task"], "name one of the image, as PACKAGE/TASK or PATH.py@TASK"
    try:
        found = load([name], dict(asked["args"]))
    except Exception as error:  # the task's own code runs
        text = f"{name} cannot be loaded: {described(error)}"
        raise Unusable("task", f"{text}; {hint}, with arguments that it takes and its data") from error
    if len(found) != 1:
        raise Unusable("task", f"{name} stands for {len(found)} tasks; {hint}")
    return found[0]


def scored(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The sample's scores, once it has been run.

    Raises:
        Unusable: it failed.
    """
    from inspect_ai import eval as run

    at = asked["sample"]
    try:
        [log] = run(
            asked["task"],
            task_args=dict(asked["args"]),
            model=MODEL,
            limit=(at, at + 1),
            epochs=1,
            fail_on_error=True,
            retry_on_error=0,
            max_retries=RETRIES,
            display="none",
            log_dir=os.path.join(os.environ.get("TMPDIR", "/tmp"), "inspect-logs"),
            log_level="warning",
        )
    except Exception as error:
        raise Unusable("task", described(error)) from error
    if log.status != "success":
        raise Unusable("task", log.error.message if log.error else f"Inspect AI ended with {log.status}")
    samples = log.samples or []
    if not samples or not samples[0].scores:
        raise Unusable("task", "the sample was not scored")
    return judged({name: score.value for name, score in samples[0].scores.items()})


def judged(values: Mapping[str, Any]) -> dict[str, Any]:
    """Scorers' values as numbers: the first is what the sample is worth, and each is a metric.

    Raises:
        Unusable: the first is none.
    """
    from inspect_ai.scorer import value_to_float

    numbers = dict(flat(values, value_to_float()))
    value = next(iter(numbers.values()))
    if not math.isfinite(value):
        raise Unusable("task", f"the first scorer gave {value}, which is no score")
    return {"value": value, "metrics": {name: each for name, each in numbers.items() if math.isfinite(each)}}


def flat(values: Mapping[str, Any], number: Any) -> Iterator[tuple[str, float]]:
    """Each value by its scorer's name, and the parts of one that has several by name and key."""
    for name, value in values.items():
        parts = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if isinstance(parts, dict):
            yield from ((f"{name}_{key}", number(each)) for key, each in parts.items())
        else:
            yield name, number(value)


def described(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
