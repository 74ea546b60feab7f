"""Sums, differences and products of small numbers, as an Inspect AI task. No training should lose this skill.

The questions are drawn here with a fixed seed, so they are the same wherever the task is loaded. Data and
code are Headway's own, under the repository's license.
"""

from __future__ import annotations

import random

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import includes, match
from inspect_ai.solver import generate, system_message

QUESTIONS = 48
ASK = "Answer with the number alone."
SIGNS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def samples(seed: int, maximum: int) -> list[Sample]:
    """The questions. They and their order depend only on the arguments."""
    draw = random.Random(seed)
    found = []
    for number in range(QUESTIONS):
        sign = draw.choice(sorted(SIGNS))
        a, b = draw.randint(1, maximum), draw.randint(1, maximum)
        found.append(
            Sample(
                id=number,
                input=f"What is {a} {sign} {b}?",
                target=str(SIGNS[sign](a, b)),
                metadata={"sign": sign},
            )
        )
    return found


@task
def arithmetic(maximum: int = 12, seed: int = 7) -> Task:
    """Questions on numbers up to `maximum`."""
    return Task(
        dataset=MemoryDataset(samples(seed, maximum), name="arithmetic"),
        solver=[system_message(ASK), generate()],
        scorer=[match(numeric=True), includes()],
    )
