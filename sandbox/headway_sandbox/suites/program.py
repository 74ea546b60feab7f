"""The program that runs one sample in its pod: `python3 -m headway_sandbox.suites.program [--check]`.

It requests the candidate's turns with OPENAI_BASE_URL and OPENAI_API_KEY, like any agent in a sandbox, and
runs the task's own solver and scorers. It does not retry a failed sample: the coordinator tries
another sandbox. It is written for inspect-ai 0.3.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys

from headway_sandbox.suites import files, grading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

CHECK, ORDER = "--check", "--order"
HASH_SEED = "PYTHONHASHSEED"
MODEL = "openai-api/openai/default"
"""This provider reads OPENAI_BASE_URL and OPENAI_API_KEY. The gateway has one model, under any name."""
RETRIES = 5
"""Retries of one request if the gateway asks for them. The gateway marks turns that failed because of
the platform."""
MESSAGE = 2000
"""Maximum characters of an error that are kept."""
WORDS = ("yes", "true", "no", "false")
"""Texts in any case that Inspect's `value_to_float` reads, besides C, I, P, N and numbers."""
HINT = "let it give a number, or one of C, I, P, N, yes, no, true and false"


class UnusableTaskError(Exception):
    """The suite cannot run as it is written. `field` is a field of the suite."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def main(arguments: list[str]) -> int:
    """Run the sample, or only check that it can run; returns 1 if that failed."""
    for variable in grading.OTHER_GATEWAYS:
        os.environ.pop(variable, None)
    asked = files.read(files.ASKED)
    assert asked is not None, "the environment's reset comes first"
    work, ending = scored, files.FOUND
    if CHECK in arguments:
        work = check
    elif ORDER in arguments:
        work, ending = order, files.ORDER
    try:
        answer = work(asked)
    except UnusableTaskError as error:
        answer = {"error": {"field": f"suite.{error.field}", "message": str(error)[:MESSAGE]}}
        print(error, file=sys.stderr)
    files.write(ending, answer)
    return int("error" in answer)


def check(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The number of the task's samples.

    Raises:
        UnusableTaskError: the task cannot be loaded, has no such sample, or cannot run in a pod.
    """
    try:
        import openai  # noqa: F401  (Inspect's provider needs it)
        from inspect_ai._eval.loader import resolve_task_args
    except ImportError as error:
        text = f"{error}: install inspect-ai and openai into the image; see examples/suites/Dockerfile"
        raise UnusableTaskError("image", text) from error
    task = one(asked)
    if unknown := sorted(asked["args"].keys() - resolve_task_args(task).keys()):
        raise UnusableTaskError("args", f"the task takes no argument {', '.join(unknown)}; remove it")
    samples = len(task.dataset)
    if asked["sample"] >= samples:
        text = f"{asked['sample'] + 1} is more than the task's {samples} samples; write at most {samples}"
        raise UnusableTaskError("limit", text)
    if not task.scorer:
        raise UnusableTaskError("task", "the task has no scorer; name one that judges its samples")
    if (grader := grading.own_grader(task)) is not None:
        raise UnusableTaskError("task", grading.fault(grader))
    if task.sandbox is not None or any(sample.sandbox is not None for sample in task.dataset):
        text = "the task runs its tools in a sandbox of Inspect's own, which a pod cannot start"
        raise UnusableTaskError("task", f"{text}; name a task whose tools need none")
    if digests(task.dataset) != in_another_process():
        text = "the task gives different samples, or another order, each time it is loaded"
        raise UnusableTaskError("task", f"{text}; let it sort them, or draw and shuffle with a fixed seed")
    return {"samples": samples}


def order(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The digests of the task's samples, in the order in which this process loads them.

    Raises:
        UnusableTaskError: the task cannot be loaded.
    """
    return {"digests": digests(one(asked).dataset)}


def in_another_process() -> list[str]:
    """The digests of the task's samples, in the order in which another process loads them, as in another pod.

    Each pod draws its own hash seed, which decides the order of a set, unless the image fixes the seed.

    Raises:
        UnusableTaskError: the other process ended without them.
    """
    variables = dict(os.environ)
    if variables.get(HASH_SEED, "random") in ("", "random"):
        variables[HASH_SEED] = "1"  # this process almost surely has another seed, of 2**32
    command = [sys.executable, "-m", "headway_sandbox.suites.program", ORDER]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, errors="replace")
    found = files.read(files.ORDER) or {}
    if "digests" not in found:
        message = found["error"]["message"] if "error" in found else (done.stderr or done.stdout).strip()
        text = f"the task was loaded once, and could not be loaded again (exit status {done.returncode})"
        raise UnusableTaskError("task", f"{text}: {message[-MESSAGE // 2 :]}")
    return list(found["digests"])


def digests(samples: Iterable[Any]) -> list[str]:
    """Digests of each sample's input, choices and target. Message ids are omitted: they are always new."""
    return [hashlib.sha256(json.dumps(parts(sample)).encode()).hexdigest() for sample in samples]


def parts(sample: Any) -> list[Any]:
    """A sample's question and its expected answer, in JSON's types."""
    asked = sample.input
    if not isinstance(asked, str):
        asked = [message.model_dump(mode="json", exclude={"id"}) for message in asked]
    return [asked, sample.choices, sample.target]


def one(asked: Mapping[str, Any]) -> Any:
    """The named task.

    Raises:
        UnusableTaskError: there is no such task, or there are several.
    """
    from inspect_ai._eval.loader import load_tasks

    name, hint = asked["task"], "name one of the image, as PACKAGE/TASK or PATH.py@TASK"
    try:
        found = load_tasks([name], dict(asked["args"]))
    except Exception as error:  # the task's own code runs
        text = f"{name} cannot be loaded: {described(error)}"
        raise UnusableTaskError(
            "task", f"{text}; {hint}, with arguments that it takes and its data"
        ) from error
    if len(found) != 1:
        raise UnusableTaskError("task", f"{name} stands for {len(found)} tasks; {hint}")
    return found[0]


def scored(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Run the sample; returns its scores.

    Raises:
        UnusableTaskError: the sample failed.
    """
    from inspect_ai import eval as run

    at, task = asked["sample"], one(asked)
    refusals = grading.Refusals(task)
    try:
        with refusals.applied():
            [log] = run(
                task,
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
        raise UnusableTaskError("task", refusals.fault or described(error)) from error
    if refusals.fault is not None:  # the task may have caught the refusal
        raise UnusableTaskError("task", refusals.fault)
    if log.status != "success":
        raise UnusableTaskError(
            "task", log.error.message if log.error else f"Inspect AI ended with {log.status}"
        )
    samples = log.samples or []
    if not samples or not samples[0].scores:
        raise UnusableTaskError("task", "the sample was not scored")
    return judged({name: score.value for name, score in samples[0].scores.items()})


def judged(values: Mapping[str, Any]) -> dict[str, Any]:
    """Scorers' values as numbers: the first is the sample's value, and every readable one is a metric.

    Raises:
        UnusableTaskError: the first scorer gave no number.
    """
    first, given = next(iter(values.items()))
    parts_of_first = list(flat({first: given}))
    if not parts_of_first:
        raise UnusableTaskError(
            "task", f"the first scorer, {first}, gave {given!r}, which has no score; {HINT}"
        )
    name, raw = parts_of_first[0]
    value = number(raw)
    if not math.isfinite(value):
        raise UnusableTaskError(
            "task", f"the first scorer gave {raw!r} as {name}, which is not a score; {HINT}"
        )
    numbers = {each: number(found_value) for each, found_value in flat(values)}
    return {
        "value": value,
        "metrics": {each: found for each, found in numbers.items() if math.isfinite(found)},
    }


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each value by its scorer's name. If a value has several parts, each part by name and key."""
    for name, value in values.items():
        several = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if isinstance(several, dict):
            yield from ((f"{name}_{key}", each) for key, each in several.items())
        else:
            yield name, value


def number(value: Any) -> float:
    """The result of Inspect's `value_to_float`; NaN for a value that it would read as 0, with a warning."""
    from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, PARTIAL, value_to_float

    if isinstance(value, str):
        known = value in (CORRECT, INCORRECT, PARTIAL, NOANSWER) or value.lower() in WORDS or numeric(value)
    else:
        known = isinstance(value, int | float)
    return value_to_float()(value) if known else math.nan


def numeric(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def described(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
