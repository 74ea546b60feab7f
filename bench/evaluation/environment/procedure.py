"""The texts of the task, the same for the sandbox, Inspect AI's task and the model. Standard library only."""

from __future__ import annotations

import zlib

SYSTEM = "You are the clerk of a refund desk. Read the procedure step by step, then answer in one line."
ASK = "Handle case {name}: read its procedure to the end before you answer."
TOOL = "next_step"
DESCRIPTION = "Read the next step of the procedure."
PARAMETER, ABOUT = "about", "What the step is read for."
LAST = " That was the last step."
"""The text, one token, that tells the model that no step follows."""
ANSWER = "Approved: we refund this customer everything that was paid."
SHORTEST, LONGEST = 2, 6
"""Minimum and maximum calls of a case. If all episodes had one length, they would all begin and end
together."""
ITEMS = ("receipt", "lamp", "voucher", "warranty", "delivery", "invoice", "parcel", "account")


def rows(number: int) -> list[dict[str, object]]:
    """The cases. Their lengths repeat in a fixed cycle, so that any number of cases has about the same
    mix."""
    span = LONGEST - SHORTEST + 1
    return [
        {"prompt": ASK.format(name=f"c{n:06d}"), "case": f"c{n:06d}", "steps": SHORTEST + 3 * n % span}
        for n in range(number)
    ]


def step(case: str, number: int, steps: int) -> str:
    """The tool's answer to call `number` (from 1) in a case with `steps` steps."""
    drawn = zlib.crc32(f"{case}/{number}".encode())
    first, second = ITEMS[drawn % 8], ITEMS[drawn // 8 % 8]
    text = f"Step {number}: compare the {first} of {case} with the {second}, and note {drawn % 997}.50."
    return text + LAST if number >= steps else text


def solved(answer: str) -> bool:
    """Whether the answer is correct."""
    return answer.strip() == ANSWER
