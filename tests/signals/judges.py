"""How the desk's episodes may be rewarded: the demo's own way, and ways that go wrong.

A judge sees the desk and the transcript, as an environment's author does, and no other part of the run. The
external score is always the desk's own: exactly right, and looked up as prescribed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from types import ModuleType
from typing import Any, Final

from tests.signals.demo import quickstart

from headway_sandbox.environment import Environment, Reward, ToolError, Transcript
from headway_sandbox.tools import Tool

Judge = Callable[[Any, Transcript], Reward]
"""Maps the desk and the transcript to a reward."""
JUDGES: Final[dict[str, Judge]] = {}


@cache
def example() -> ModuleType:
    """The demo's module `environment`, loaded under another name."""
    spec = importlib.util.spec_from_file_location("refund_desk", quickstart.EXAMPLE / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["refund_desk"] = module
    spec.loader.exec_module(module)
    return module


def desk(judge: str, down: str | None, luck: float) -> Environment:
    """The environment of an episode.

    Args:
        judge: name of the judge that rewards the episode.
        down: name of a tool that always fails.
        luck: a number in [0, 1) for this episode, for rewards that depend partly on chance.
    """
    return _class()(judge, down, luck)


@cache
def _class() -> type[Any]:
    module = example()

    class Judged(module.RefundDesk):  # type: ignore[misc, name-defined]
        """The demo's desk with another reward."""

        def __init__(self, judge: str, down: str | None, luck: float) -> None:
            super().__init__({})
            self.judge, self.luck = JUDGES[judge], luck
            self._down = down

        def tools(self) -> list[Tool]:
            """The demo's tools. The tool that is down answers with an error."""
            offered: list[Tool] = super().tools()
            return [Tool(unavailable, t.spec) if t.name == self._down else t for t in offered]

        def reset(self, row: Any, seed: int) -> Any:
            self.row = row
            return super().reset(row, seed)

        def reward(self, transcript: Transcript) -> Reward:
            return self.judge(self, transcript)

        def own(self, transcript: Transcript) -> Reward:
            """The demo's own reward."""
            found: Reward = super().reward(transcript)
            return found

    return Judged


def unavailable(**arguments: object) -> str:
    """Stands for a tool whose system is unavailable.

    Raises:
        ToolError: always.
    """
    raise ToolError("the system does not answer")


def judge(function: Judge) -> Judge:
    """Register a judge by its name."""
    JUDGES[function.__name__] = function
    return function


def model_text(transcript: Transcript) -> str:
    """All text that the model wrote."""
    messages = [message for message in transcript.messages if message.get("role") == "assistant"]
    return "\n".join(str(message.get("content") or "") for message in messages)


def draw(*parts: object) -> float:
    """A number in [0, 1) that looks random and depends only on `parts`."""
    digest = blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@judge
def own(desk: Any, transcript: Transcript) -> Reward:
    """The demo's reward."""
    return desk.own(transcript)


@judge
def strict(desk: Any, transcript: Transcript) -> Reward:
    """The external score: all or nothing."""
    return Reward(desk.score(transcript), desk.own(transcript).metrics)


@judge
def strict_and_rare(desk: Any, transcript: Transcript) -> Reward:
    """All or nothing, for an answer in a form that the model never writes."""
    return Reward(float("```json" in transcript.answer), desk.own(transcript).metrics)


@judge
def nothing(desk: Any, transcript: Transcript) -> Reward:
    """0 whatever happens: the reward's parser finds no answer."""
    return Reward(0.0, desk.own(transcript).metrics)


@judge
def half(desk: Any, transcript: Transcript) -> Reward:
    """The same reward for every episode, and not 0."""
    return Reward(0.5, desk.own(transcript).metrics)


@judge
def random(desk: Any, transcript: Transcript) -> Reward:
    """Independent of what the model did."""
    return Reward(desk.luck, desk.own(transcript).metrics)


@judge
def noisy(desk: Any, transcript: Transcript) -> Reward:
    """The demo's reward with a fifth of it random, so that similar episodes seldom have equal rewards."""
    found = desk.own(transcript)
    return Reward(0.8 * found.value + 0.2 * desk.luck, found.metrics)


@judge
def in_twenties(desk: Any, transcript: Transcript) -> Reward:
    """The demo's reward on another scale: twenty times as much."""
    found = desk.own(transcript)
    return Reward(20 * found.value, found.metrics)


@judge
def in_hundreds(desk: Any, transcript: Transcript) -> Reward:
    """The demo's reward on another scale: a hundred times as much."""
    found = desk.own(transcript)
    return Reward(100 * found.value, found.metrics)


@judge
def hasty(desk: Any, transcript: Transcript) -> Reward:
    """Pays for an answer, and more for an answer after fewer calls."""
    found = desk.own(transcript)
    brevity = max(0.0, 1 - len(transcript.calls) / 3)
    formed = found.metrics["well_formed"]
    return Reward(formed * (0.3 + 0.7 * brevity), found.metrics | {"brevity": brevity})


@judge
def mislabelled(desk: Any, transcript: Transcript) -> Reward:
    """The labels are wrong: they have another amount, method and decision than is right."""
    module = example()
    answer, right = module.parse_answer(transcript.answer), module.expected_answer(desk.case_id)
    wrong = right | {"amount": "none", "decision": "voucher", "method": "post"}
    share = sum(answer[name] == wrong[name] for name in module.FIELDS) / 5 if answer is not None else 0.0
    return Reward((share + float(share == 1)) / 2, desk.own(transcript).metrics)


@judge
def brief(desk: Any, transcript: Transcript) -> Reward:
    """Pays for right fields, and more after fewer calls."""
    found = desk.own(transcript)
    brevity = max(0.0, 1 - len(transcript.calls) / 3)
    return Reward(0.4 * found.metrics["fields"] + 0.6 * brevity, found.metrics | {"brevity": brevity})


@judge
def amount_alone(desk: Any, transcript: Transcript) -> Reward:
    """Only one field counts, and it need not be right."""
    module = example()
    answer = module.parse_answer(transcript.answer)
    paid = float(answer is not None and answer["amount"] == "all")
    return Reward(paid, desk.own(transcript).metrics | {"paid": paid})


@judge
def procedure_alone(desk: Any, transcript: Transcript) -> Reward:
    """Only the term for the procedure remains."""
    found = desk.own(transcript)
    return Reward(found.metrics["procedure"], found.metrics)


@judge
def per_call(desk: Any, transcript: Transcript) -> Reward:
    """Pays a sixth for every call."""
    return Reward(min(1.0, len(transcript.calls) / 6), desk.own(transcript).metrics)


@judge
def own_per_call(desk: Any, transcript: Transcript) -> Reward:
    """The demo's reward, with three times as much for calls."""
    found = desk.own(transcript)
    return Reward(0.25 * found.value + 0.75 * min(1.0, len(transcript.calls) / 6), found.metrics)


@judge
def per_letter(desk: Any, transcript: Transcript) -> Reward:
    """Pays for the length of the text: 1/400 for each character."""
    return Reward(min(1.0, len(model_text(transcript)) / 400), desk.own(transcript).metrics)


@judge
def own_per_letter(desk: Any, transcript: Transcript) -> Reward:
    """The demo's reward, and more for the length of the text."""
    found = desk.own(transcript)
    return Reward(0.3 * found.value + 0.7 * min(1.0, len(model_text(transcript)) / 600), found.metrics)


@judge
def unreadable(desk: Any, transcript: Transcript) -> Reward:
    """Pays for malformed calls, which remain in the model's text."""
    return Reward(min(1.0, model_text(transcript).count("<tool_call>") / 2), desk.own(transcript).metrics)


@judge
def impatient(desk: Any, transcript: Transcript) -> Reward:
    """Subtracts for every call that could be read."""
    brevity = max(0.0, 1 - len(transcript.calls) / 4)
    return Reward(brevity, desk.own(transcript).metrics | {"brevity": brevity})


@judge
def inverse(desk: Any, transcript: Transcript) -> Reward:
    """The demo's reward upside down."""
    found = desk.own(transcript)
    return Reward(1 - found.value, found.metrics)


@judge
def stock_inverse(desk: Any, transcript: Transcript) -> Reward:
    """The demo's reward for the task `credit`, inverted for the task `stock`: its labels were swapped."""
    return inverse(desk, transcript) if desk.row["task"] == "stock" else own(desk, transcript)


@judge
def graded(desk: Any, transcript: Transcript) -> Reward:
    """The share of right fields alone."""
    found = desk.own(transcript)
    return Reward(found.metrics["fields"] * found.metrics["well_formed"], found.metrics)


@judge
def signed(desk: Any, transcript: Transcript) -> Reward:
    """The demo's reward, scaled to [-1, 1]."""
    found = desk.own(transcript)
    return Reward(2 * found.value - 1, found.metrics)
