"""Runs the same task in Inspect AI, with its own task, tool, loop and scorer, and its provider for vLLM.

    python -m bench.evaluation.inspect_side JSON     prints the time and the totals, as JSON

Inspect AI's tool runs in its own process, while Headway's runs in a sandbox per episode. Inspect AI's log
goes to a folder of this machine, while Headway writes to S3. All other settings are Inspect AI's defaults.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.event import ModelEvent
from inspect_ai.log import EvalLog
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, GenerateConfig, get_model
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import store

from bench.evaluation.environment import procedure


@dataclass(frozen=True)
class Settings:
    """The server and the work."""

    url: str
    """vLLM's URL, up to and including /v1."""
    key: str
    """The key of vLLM's port."""
    model: str
    rows: int
    places: int
    max_tokens: int
    folder: str
    """Folder for Inspect AI's logs."""


marks: list[tuple[float, float]] = []
"""Times at which an episode began or was scored."""


def now() -> tuple[float, float]:
    """The monotonic time in seconds, and the CPU seconds of this process."""
    return time.monotonic(), time.process_time()


@tool
def next_step() -> Tool:
    """A tool that returns the procedure step by step, as the sandbox's environment does."""

    async def execute(about: str) -> str:
        """Read the next step of the procedure.

        Args:
            about: What the step is read for.
        """
        of, read = store(), store().get("read", 0) + 1
        of.set("read", read)
        return procedure.step(of.get("case"), read, of.get("steps"))

    return execute


@solver
def opened() -> Solver:
    """A solver that begins the case."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        marks.append(now())
        for name in ("case", "steps"):
            state.store.set(name, state.metadata[name])
        return state

    return solve


@scorer(metrics=[accuracy(), stderr()])
def solved() -> Scorer:
    """A scorer that compares the answer with the procedure's answer."""

    async def score(state: TaskState, target: Target) -> Score:
        answer = state.output.completion
        marks.append(now())
        return Score(value=CORRECT if procedure.solved(answer) else INCORRECT, answer=answer)

    return score


def task(rows: int) -> Task:
    """A task for Inspect AI with the environment's rows, prompts and tool."""
    samples = [
        Sample(
            id=str(row["case"]),
            input=[ChatMessageSystem(content=procedure.SYSTEM), ChatMessageUser(content=str(row["prompt"]))],
            target=procedure.ANSWER,
            metadata={"case": row["case"], "steps": row["steps"]},
        )
        for row in procedure.rows(rows)
    ]
    return Task(
        dataset=MemoryDataset(samples), solver=[opened(), use_tools(next_step()), generate()], scorer=solved()
    )


async def prime(settings: Settings, first: Sample) -> None:
    """Make vLLM cache the common beginning of all episodes, as for the other sides, before the
    measurement."""
    model = get_model(f"vllm/{settings.model}", base_url=settings.url, api_key=settings.key, memoize=False)
    assert not isinstance(first.input, str)
    short = GenerateConfig(temperature=0.0, max_tokens=1)
    await model.generate(first.input, tools=[next_step()], config=short)


def run(settings: Settings) -> dict[str, Any]:
    """Run one evaluation, timed from the beginning of the first episode to the scoring of the last one."""
    config = GenerateConfig(temperature=0.0, max_tokens=settings.max_tokens, max_connections=settings.places)
    measured = task(settings.rows)
    asyncio.run(prime(settings, measured.dataset[0]))
    [log] = eval(
        measured,
        model=get_model(f"vllm/{settings.model}", base_url=settings.url, api_key=settings.key, config=config),
        max_samples=settings.places,
        log_dir=settings.folder,
        display="none",
    )
    seconds, cpu = (after - before for before, after in zip(marks[0], marks[-1], strict=True))
    return {"seconds": seconds, "cpu": cpu} | totals(log)


def totals(log: EvalLog) -> dict[str, Any]:
    """Totals over all episodes: times, turns, tokens and successes."""
    assert log.status == "success", log.error
    samples = log.samples or []
    assert not any(sample.error for sample in samples), "an episode failed"
    usage = [usage for sample in samples for usage in sample.model_usage.values()]
    scores = [score for sample in samples for score in (sample.scores or {}).values()]
    calls = [event for sample in samples for event in sample.events if isinstance(event, ModelEvent)]
    return {
        "in_episodes": sum(sample.total_time or 0.0 for sample in samples),
        "in_calls": sum(call.working_time or 0.0 for call in calls),
        "episodes": len(samples),
        "turns": len(calls),
        "prompt_tokens": sum(use.input_tokens + (use.input_tokens_cache_read or 0) for use in usage),
        "sampled_tokens": sum(use.output_tokens for use in usage),
        "solved": sum(score.value == CORRECT for score in scores),
    }


if __name__ == "__main__":
    print(json.dumps(run(Settings(**json.loads(sys.argv[1])))), flush=True)
