"""More faults that the list of checks names, one for each class, each seeded into a clean task."""

from __future__ import annotations

import json
import random
import re
import time

import orders
import parcels
import triage

from headway_sandbox.environment import Reward, tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from headway_sandbox.environment import Observation, Transcript


class SeedForgotten(parcels.Parcels):
    """The prompt lists the rules in an order that does not depend on the seed."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        first = super().reset(row, seed)
        note = random.choice([f"Case file {number}." for number in range(1000)])
        first.messages[1] = {"role": "user", "content": f"{row['prompt']} {note}"}
        return first


class FieldMayBeMissing(parcels.Parcels):
    """Reward and score compare only the fields that are there, so a dropped field costs nothing."""

    def answer(self, text: str) -> dict[str, Any]:
        found = re.fullmatch(r"<final_output>(.*)</final_output>", text)
        try:
            fields = json.loads(found[1]) if found else {}
        except ValueError:
            fields = {}
        return fields if isinstance(fields, dict) else {}

    def share(self, transcript: Transcript) -> float:
        fields = self.answer(transcript.answer)
        right = sum(self.row["expected"].get(name) == value for name, value in fields.items())
        return right / len(fields) if fields else 0.0

    def reward(self, transcript: Transcript) -> float:
        return self.share(transcript)

    def score(self, transcript: Transcript) -> float:
        return float(self.share(transcript) == 1.0)


class AnyOfSeveral(triage.Triage):
    """Reward and score accept any of several answers, so it pays to list them all."""

    def right(self, transcript: Transcript) -> bool:
        return self.row["answer"] in re.findall(r"<decision>[a-z]+</decision>", transcript.answer)

    def reward(self, transcript: Transcript) -> float:
        return float(self.right(transcript))

    def score(self, transcript: Transcript) -> float:
        return float(self.right(transcript))


class OrderOfKeys(parcels.Parcels):
    """Reward and score compare texts, so the same object with its keys in another order is wrong."""

    def right(self, transcript: Transcript) -> bool:
        expected = {name: self.row["expected"][name] for name in parcels.FIELDS}
        return transcript.answer == f"<final_output>{json.dumps(expected)}</final_output>"

    def reward(self, transcript: Transcript) -> Reward:
        given = super().reward(transcript)
        return Reward(given.value if self.right(transcript) else min(given.value, 0.4), given.metrics)

    def score(self, transcript: Transcript) -> float:
        return float(self.right(transcript))


class PaysKeywords(parcels.Parcels):
    """The reward counts the procedure's words in the answer, and the repeated prompt has them all."""

    def reward(self, transcript: Transcript) -> float:
        words = [*parcels.GRADES.values(), *parcels.ROUTES.values(), *parcels.FEES.values()]
        return sum(word in transcript.answer for word in words) / len(words)


class RowDecides(parcels.Parcels):
    """An episode's reward depends on its row alone, so the rewards of a group never differ."""

    def reward(self, transcript: Transcript) -> float:
        return float(sum(map(ord, self.row["parcel"])) % 2)


class NotANumber(parcels.Parcels):
    """The mean over no fields: the reward of an episode without an answer is not a number."""

    def reward(self, transcript: Transcript) -> Reward | float:
        if parcels.parse(transcript.answer) is None:
            return float("nan")
        return super().reward(transcript)


class SlowTool(orders.Orders):
    """A tool waits for a live system: eleven seconds a call."""

    @tool
    def get_plan(self, order: str) -> dict[str, Any]:
        """Plan of the customer."""
        time.sleep(11)
        return {"plan": self.known(order)["plan"]}


class LosesEpisodes(orders.Orders):
    """A tool breaks on every other order."""

    @tool
    def get_plan(self, order: str) -> dict[str, Any]:
        """Plan of the customer."""
        if sum(map(ord, order)) % 2 == 0:
            raise KeyError(order)
        return {"plan": self.known(order)["plan"]}


class CounterOfAll(parcels.Parcels):
    """A tool counts the calls of all episodes in one file."""

    @tool
    def weigh(self, parcel: str) -> dict[str, Any]:
        """How heavy a parcel is."""
        with open(f"{self.config['folder']}/count", "a+") as file:
            file.write("x")
            file.seek(0)
            count = len(file.read())
        return {"weight": self.known(parcel)["weight"], "weighings": count}
