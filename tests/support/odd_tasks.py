"""Unusual and faulty tasks of Inspect AI. Tests copy this file to where a suite's sandbox finds it."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser, get_model
from inspect_ai.scorer import Score, Target, includes, match, mean, model_graded_qa, scorer
from inspect_ai.scorer import score as scores_of
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import Tool, tool

LETTERS = "abcdefgh"
DRAWN = random.sample(range(1000), 8)
"""Each process that imports this module draws other numbers."""


def dataset() -> MemoryDataset:
    return MemoryDataset([Sample(input=f"Say {letter}.", target=letter) for letter in LETTERS])


@scorer(metrics={"*": [mean()]})
def parts() -> Any:
    """A value of several parts."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value={"right": "C", "brief": 0.25, "kind": False})

    return score


@scorer(metrics=[mean()])
def verdict() -> Any:
    """A letter that stands for a number."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value="P")

    return score


@scorer(metrics=[mean()])
def none_at_all() -> Any:
    """No number."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=float("nan"))

    return score


@scorer(metrics=[mean()])
def grade() -> Any:
    """A letter that stands for no number."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value="B")

    return score


@scorer(metrics={"*": [mean()]})
def nothing() -> Any:
    """A value without parts."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value={})

    return score


@scorer(metrics=[mean()])
def asks(by: str) -> Any:
    """Asks a model for the score, in one of several ways."""

    def by_a_client_of_its_own() -> None:
        from openai import OpenAI

        asked = {"role": "user", "content": "Is it right?"}
        OpenAI().chat.completions.create(model="any", messages=[asked])  # type: ignore[list-item]

    async def score(state: TaskState, target: Target) -> Score:
        if by == "client":
            await asyncio.get_running_loop().run_in_executor(None, by_a_client_of_its_own)
            return Score(value="C")
        model = get_model(role="grader") if by == "role" else get_model("openai/gpt-4o")
        try:
            await model.generate("Is it right?")
        except Exception:
            if by != "caught":
                raise
        return Score(value="C")

    return score


@solver
def reflects() -> Solver:
    """Asks for an answer, scores it, and asks a critic and for another answer."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        await scores_of(state)
        await get_model(role="grader").generate("Is it right?")
        return await generate(state)

    return solve


@solver
def breaks() -> Solver:
    """Fails after a turn."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await generate(state)
        raise RuntimeError("the solver broke on purpose")

    return solve


@tool
def look_up() -> Tool:
    """Knows which metal a thing is made of."""

    async def execute(key: str) -> str:
        """Look a thing up.

        Args:
            key: What to look up.
        """
        return f"{key} is gold"

    return execute


@task
def metals() -> Task:
    """Takes one tool call to answer."""
    asked = [Sample(input="Which metal is x?", target="gold")]
    return Task(dataset=MemoryDataset(asked), solver=[use_tools(look_up()), generate()], scorer=includes())


@task
def letters() -> Task:
    return Task(dataset=dataset(), solver=generate(), scorer=[verdict(), parts(), none_at_all()])


@task
def unjudged() -> Task:
    return Task(dataset=dataset(), solver=generate())


@task
def boxed() -> Task:
    return Task(dataset=dataset(), solver=generate(), scorer=match(), sandbox="docker")


@task
def shuffled() -> Task:
    found = dataset()
    found.shuffle(random.SystemRandom().randint(0, 2**31))
    return Task(dataset=found, solver=generate(), scorer=match())


@task
def of_a_set() -> Task:
    """Samples in the order of a set of texts, which is the hash seed's."""
    found = [Sample(input=text, target="x") for text in {f"Say {number}." for number in range(64)}]
    return Task(dataset=MemoryDataset(found), solver=generate(), scorer=match())


@task
def drawn_at_import() -> Task:
    """The questions are the same in each process; the answers are not."""
    found = [Sample(input=f"Say {letter}.", target=str(n)) for letter, n in zip(LETTERS, DRAWN, strict=True)]
    return Task(dataset=MemoryDataset(found), solver=generate(), scorer=match())


@task
def of_messages() -> Task:
    """Inputs of messages, whose ids are new each time."""
    asked = [Sample(input=[ChatMessageUser(content=f"Say {letter}.")], target=letter) for letter in LETTERS]
    return Task(dataset=MemoryDataset(asked), solver=generate(), scorer=match())


@task
def broken() -> Task:
    return Task(dataset=dataset(), solver=breaks(), scorer=match())


@task
def graded() -> Task:
    return Task(dataset=dataset(), solver=generate(), scorer=[match(), model_graded_qa()])


@task
def asked(by: str) -> Task:
    return Task(dataset=dataset(), solver=generate(), scorer=asks(by))


@task
def reflected() -> Task:
    return Task(dataset=dataset(), solver=reflects(), scorer=match())


@task
def unscorable() -> Task:
    return Task(dataset=dataset(), solver=generate(), scorer=none_at_all())


@task
def unreadable() -> Task:
    return Task(dataset=dataset(), solver=generate(), scorer=grade())


@task
def empty() -> Task:
    return Task(dataset=dataset(), solver=generate(), scorer=[nothing(), match()])


@task
def without_data() -> Task:
    raise FileNotFoundError("no file letters.jsonl")


@task
def without_other_gateways() -> Task:
    """Can only be loaded if no other provider's variables lead to the gateway."""
    assert not any(name.startswith("ANTHROPIC_") for name in os.environ)
    return Task(dataset=dataset(), solver=generate(), scorer=includes())
