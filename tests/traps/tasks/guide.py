"""Faults that the practice guide describes, one for each class, each seeded into a clean task."""

from __future__ import annotations

import json
import os
import time

import orders
import parcels
import sums
import triage

from headway_sandbox.environment import Observation, Reward, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from headway_sandbox.environment import Transcript


class WrongTag(triage.Triage):
    """The tag in the prompt's example differs from the one in the data and the scorer."""

    EXAMPLE = "<verdict>...</verdict>"


class MissingField(parcels.Parcels):
    """The prompt's example lacks a field of the labels, so the reward saturates below its maximum."""

    EXAMPLE = '<final_output>{"grade": "...", "route": "...", "item": "..."}</final_output>'

    def reward(self, transcript: Transcript) -> Reward | float:
        text = transcript.answer
        start, end = "<final_output>", "</final_output>"
        try:
            answer = json.loads(text[len(start) : -len(end)]) if text.startswith(start) else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            return 0.0
        right = sum(answer.get(name) == self.row["expected"][name] for name in parcels.FIELDS)
        return Reward(0.1 + 0.9 * right / len(parcels.FIELDS), {"completion": 1.0})


class Substring(triage.Triage):
    """Reward and score look for the right word anywhere in the answer."""

    def word(self) -> str:
        return self.row["answer"].removeprefix("<decision>").removesuffix("</decision>")

    def reward(self, transcript: Transcript) -> float:
        return float(self.word() in transcript.answer)

    def score(self, transcript: Transcript) -> float:
        return float(self.word() in transcript.answer)


class BareWrapper(triage.Triage):
    """The reward reads the word in any wrapper or none. The score wants the right tag."""

    def reward(self, transcript: Transcript) -> float:
        inner = transcript.answer.partition(">")[2].rpartition("<")[0] or transcript.answer
        return float(f"<decision>{inner.strip()}</decision>" == self.row["answer"])


class FullForForm(parcels.Parcels):
    """The reward pays in full for any well-formed answer, whatever it says."""

    def reward(self, transcript: Transcript) -> Reward:
        return Reward(float(parcels.parse(transcript.answer) is not None), {})


class LeakingTool(parcels.Parcels):
    """A tool's answer contains the label."""

    @tool
    def get_parcel(self, parcel: str) -> dict[str, Any]:
        """State and item of a parcel."""
        known = self.known(parcel)
        return {"state": known["state"], "item": known["item"], "audit": json.dumps(self.row["expected"])}


class LabelInPrompt(sums.Sums):
    """The prompt shows the whole row with its answer."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.row = row
        text = "Solve the problem. You may calculate. Answer with nothing but the number, such as: #### ..."
        return Observation([system(text), user(json.dumps(row))])


class Clock(parcels.Parcels):
    """A tool's answer contains the time, so the same call gives another answer."""

    @tool
    def weigh(self, parcel: str) -> dict[str, Any]:
        """How heavy a parcel is."""
        return {"weight": self.known(parcel)["weight"], "at": time.time_ns()}


class HashOrder(orders.Orders):
    """A tool lists a set, whose order differs between processes."""

    @tool
    def get_carrier(self, order: str) -> dict[str, Any]:
        """Carrier of an order."""
        others = {f"{name}-{number}" for name in orders.CARRIERS for number in range(8)}
        return {"carrier": self.known(order)["carrier"], "all": list(others)}


class SharedState(orders.Orders):
    """All episodes share one file with what was settled, so the state is not the episode's own."""

    def path(self) -> str:
        return os.path.join(self.config["folder"], "settled.jsonl")

    @tool
    def get_order(self, order: str) -> dict[str, Any]:
        """Status and price of an order."""
        known = self.known(order)
        settled = []
        if os.path.exists(self.path()):
            with open(self.path()) as file:
                settled = file.read().split()
        return {"status": known["status"], "price": known["price"], "settled": settled}

    def settle(self, action: str, order: str, amount: int) -> dict[str, bool]:
        with open(self.path(), "a") as file:
            file.write(f"{action}:{order}:{amount}\n")
        return super().settle(action, order, amount)


class LongTool(parcels.Parcels):
    """The output of one tool call is longer than the context."""

    @tool
    def get_parcel(self, parcel: str) -> dict[str, Any]:
        """State and item of a parcel."""
        known = self.known(parcel)
        history = [f"{parcel} was seen at depot {number} and found unchanged" for number in range(1000)]
        return {"state": known["state"], "item": known["item"], "history": history}


class PaysCalls(parcels.Parcels):
    """The reward pays for tool calls, even if the answer is wrong."""

    def reward(self, transcript: Transcript) -> Reward:
        return Reward(min(1.0, 0.2 * len(transcript.calls)), {"calls": float(len(transcript.calls))})


class Disagrees(parcels.Parcels):
    """The reward reads two of the four fields, and the score reads all."""

    def reward(self, transcript: Transcript) -> float:
        answer, expected = parcels.parse(transcript.answer), self.row["expected"]
        if answer is None:
            return 0.0
        return 0.5 * (answer["item"] == expected["item"]) + 0.5 * (answer["fee"] == expected["fee"])


class Uniform(parcels.Parcels):
    """Every episode has the same reward."""

    def reward(self, transcript: Transcript) -> float:
        return 0.5


class OffTheScale(parcels.Parcels):
    """The reward reaches 5, and the job says that its maximum is 1."""

    def reward(self, transcript: Transcript) -> Reward:
        given = super().reward(transcript)
        return Reward(5 * given.value, given.metrics)


class UnlikeProduction(orders.Orders):
    """A tool's parameter differs from production's."""

    @tool
    def get_plan(self, order_number: str) -> dict[str, Any]:
        """Plan of the customer."""
        return {"plan": self.known(order_number)["plan"]}


class PaysSilence(triage.Triage):
    """An episode without an answer earns more than a wrong answer, because turns are punished."""

    def reward(self, transcript: Transcript) -> Reward | float:
        if not transcript.answer:
            return 0.8
        return super().reward(transcript)


class NeedsAColumn(parcels.Parcels):
    """Some rows lack the column that the reset reads."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.depot = row["depot"]
        return super().reset(row, seed)
