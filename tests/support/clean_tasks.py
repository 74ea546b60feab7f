"""Tasks of several kinds without faults, each with a policy that succeeds now and then."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from made_up_baselines import Policy, sample_of

from headway_analysis.preflight.evidence import Baseline, Call
from headway_sandbox.environment import (
    Done,
    Environment,
    Observation,
    Reward,
    ToolError,
    Transcript,
    system,
    tool,
    user,
)

Row = Mapping[str, Any]
COLOURS = ("red", "green", "blue", "white", "black", "amber")
CITIES = ("Oslo", "Quito", "Lagos", "Hanoi", "Perth", "Turin", "Cork", "Lima")


class Task(NamedTuple):
    """A task without faults."""

    make: type[Environment]
    rows: Callable[[random.Random, int], list[Row]]
    policy: Callable[[int], Policy]
    facts: Mapping[str, Any] = {}

    def baseline(self, seed: int, rows: int = 13, size: int = 5) -> Baseline:
        """Baseline episodes of the task's policy."""
        found = self.rows(random.Random(seed), rows)
        return sample_of(lambda: self.make({}), found, self.policy(seed), size, seed=seed, **self.facts)


def luck(row: Row, index: int, seed: int) -> random.Random:
    """The random numbers of one episode."""
    return random.Random(f"{seed}/{row['prompt']}/{index}")


class Plain(Environment):
    """One question, one answer, no tools."""

    asked = "Answer with the answer alone."

    def reset(self, row: Row, seed: int) -> Observation:
        self.row = row
        return Observation([system(self.asked), user(row["prompt"])])

    def reward(self, transcript: Transcript) -> Reward | float:
        return self.score(transcript)

    def score(self, transcript: Transcript) -> float:
        return float(transcript.answer == str(self.row["answer"]))


def exact_rows(drawn: random.Random, count: int) -> list[Row]:
    pairs = [(drawn.randrange(1000), drawn.randrange(1000)) for _ in range(count)]
    return [{"prompt": f"{a} + {b} = ?", "answer": str(a + b)} for a, b in pairs]


def exact(seed: int) -> Policy:
    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        drawn = luck(row, index, seed)
        return (), str(int(row["answer"]) + (drawn.random() > 0.4) * drawn.randrange(1, 20))

    return policy


class Boxed(Plain):
    """The answer has reasoning, and only its last box counts."""

    asked = "Think, then write the result as \\boxed{...}."

    def score(self, transcript: Transcript) -> float:
        found = re.findall(r"\\boxed\{([^{}]*)\}", transcript.answer)
        return float(bool(found) and found[-1].strip() == self.row["answer"])


def boxed(seed: int) -> Policy:
    inner = exact(seed)

    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        _, answer = inner(row, index)
        return (), f"Let me add the two: first tens, then ones. So it is \\boxed{{{answer}}}"

    return policy


class Coin(Plain):
    """Two classes with as many rows each. A missing answer has a negative reward."""

    asked = "Is the number even? Answer yes or no."

    def reward(self, transcript: Transcript) -> Reward | float:
        return self.score(transcript) if transcript.answer.strip() else -0.1

    def score(self, transcript: Transcript) -> float:
        return float(transcript.answer.strip().lower() == self.row["label"])


def coin_rows(drawn: random.Random, count: int) -> list[Row]:
    numbers = drawn.sample(range(10**6), 40)
    return [
        {"prompt": f"Is {2 * n + at % 2} even?", "label": ("yes", "no")[at % 2]}
        for at, n in enumerate(numbers)
    ]


def coin(seed: int) -> Policy:
    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        drawn = luck(row, index, seed)
        return (), row["label"] if drawn.random() < 0.7 else {"yes": "no", "no": "yes"}[row["label"]]

    return policy


class Extract(Plain):
    """The prompt contains everything that the answer has to extract."""

    asked = 'Extract as JSON: {"name": "Ada", "city": "Rome", "amount": 10}'

    def read(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return None

    def reward(self, transcript: Transcript) -> Reward | float:
        found, wanted = self.read(transcript.answer), self.row["expected"]
        if not isinstance(found, dict):
            return 0.0
        right = sum(found.get(key) == value for key, value in wanted.items()) / len(wanted)
        return Reward(0.1 + 0.9 * right, {"fields": right})

    def score(self, transcript: Transcript) -> float:
        return float(self.read(transcript.answer) == self.row["expected"])


def extract_rows(drawn: random.Random, count: int) -> list[Row]:
    found = []
    for at in range(count):
        wanted = {"name": f"Kim{at}", "city": drawn.choice(CITIES), "amount": drawn.randrange(10, 900)}
        text = f"{wanted['name']} of {wanted['city']} paid {wanted['amount']} in March."
        found.append({"id": at, "prompt": text, "expected": wanted})
    return found


def extract(seed: int) -> Policy:
    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        drawn, answer = luck(row, index, seed), dict(row["expected"])
        if drawn.random() < 0.5:
            answer["amount"] = str(answer["amount"])
        return (), json.dumps(answer)

    return policy


class Lookup(Plain):
    """Tools return the answer, under the names of the label's fields. One tool searches all customers."""

    asked = "Look the customer up. Answer <final>tier: TIER\nseat: SEAT</final>."

    @tool
    def get_customer(self, customer: str) -> dict[str, str]:
        """What is known of a customer."""
        if customer != self.row["customer"]:
            raise ToolError("no such customer")
        return {"tier": self.row["expected"]["tier"], "since": "2019-04-01"}

    @tool
    def get_seat(self, customer: str) -> dict[str, str]:
        """Where it sits."""
        return {"seat": self.row["expected"]["seat"]}

    @tool
    def search(self, text: str) -> list[str]:
        """Customers whose names begin so."""
        return [f"{text}-{number}" for number in range(3)]

    def fields(self, text: str) -> dict[str, str]:
        found = re.fullmatch(r"<final>(.*)</final>", text.strip(), re.DOTALL)
        pairs = [line.partition(":") for line in (found.group(1) if found else "").splitlines()]
        return {key.strip(): value.strip() for key, _, value in pairs}

    def reward(self, transcript: Transcript) -> Reward | float:
        found, wanted = self.fields(transcript.answer), self.row["expected"]
        return sum(found.get(key) == value for key, value in wanted.items()) / len(wanted)

    def score(self, transcript: Transcript) -> float:
        return float(self.fields(transcript.answer) == self.row["expected"])


def lookup_rows(drawn: random.Random, count: int) -> list[Row]:
    return [
        {
            "prompt": f"Tier and seat of {customer}?",
            "customer": customer,
            "expected": {
                "tier": drawn.choice(COLOURS),
                "seat": f"{drawn.randrange(90)}{drawn.choice('ABC')}",
            },
        }
        for customer in (f"cust-{drawn.randrange(10**6)}-{at}" for at in range(count))
    ]


def lookup(seed: int) -> Policy:
    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        drawn, wanted = luck(row, index, seed), dict(row["expected"])
        if drawn.random() < 0.5:
            wanted["tier"] = drawn.choice(COLOURS)
        case = {"customer": row["customer"]}
        calls = [Call("get_customer", case), Call("get_seat", case), Call("search", {"text": "cust"})]
        return calls, "<final>" + "\n".join(f"{key}: {value}" for key, value in wanted.items()) + "</final>"

    return policy


class Cart(Environment):
    """The instance has state, which tools change, and one call ends the episode. There is no label: the score
    depends on the resulting state."""

    def reset(self, row: Row, seed: int) -> Observation:
        self.row = row
        self.items: dict[str, int] = {}
        self.bought = False
        self.order = random.Random(seed).randrange(10**6)
        return Observation([system("Fill the cart, then check out."), user(row["prompt"])])

    @tool
    def add_item(self, name: str, count: int) -> dict[str, int]:
        """Put something into the cart."""
        self.items[name] = self.items.get(name, 0) + count
        return self.items

    @tool
    def get_cart(self) -> dict[str, int]:
        """What is in it."""
        return self.items

    @tool
    def check_out(self, city: str) -> Done:
        """Buy, to be sent to a city."""
        self.bought = city == self.row["city"]
        return Done(f"order {self.order}")

    def reward(self, transcript: Transcript) -> Reward | float:
        right = self.items == self.row["wanted"]
        return Reward(0.5 * right + 0.5 * (right and self.bought), {"completion": float(self.bought)})

    def score(self, transcript: Transcript) -> float:
        return float(self.items == self.row["wanted"] and self.bought)


def cart_rows(drawn: random.Random, count: int) -> list[Row]:
    found = []
    for at in range(count):
        wanted = {colour: drawn.randrange(1, 5) for colour in drawn.sample(COLOURS, 2)}
        city = drawn.choice(CITIES)
        text = " and ".join(f"{number} {name} lamps" for name, number in wanted.items())
        found.append({"prompt": f"Order {at}: {text}, to {city}.", "wanted": wanted, "city": city})
    return found


def cart(seed: int) -> Policy:
    def policy(row: Row, index: int) -> tuple[Sequence[Call], str | None]:
        drawn = luck(row, index, seed)
        calls = [Call("get_cart", {})]
        for name, count in row["wanted"].items():
            calls.append(Call("add_item", {"name": name, "count": count + (drawn.random() < 0.25)}))
        calls += [Call("get_cart", {}), Call("check_out", {"city": row["city"]})]
        return calls, None

    return policy


class Judged(Plain):
    """The answer is prose that must name the right colour and no other."""

    asked = "Which colour is it? Say in a sentence why."

    def score(self, transcript: Transcript) -> float:
        named = [colour for colour in COLOURS if colour in transcript.answer.lower()]
        return float(named == [self.row["label"]])


def judged_rows(drawn: random.Random, count: int) -> list[Row]:
    return [
        {"prompt": f"Lamp {drawn.randrange(10**6)}?", "label": drawn.choice(COLOURS[:4])}
        for _ in range(count)
    ]


def judged(seed: int) -> Policy:
    shapes = (
        "I looked at it and would say {} for sure",
        "Seen in daylight {} is what it must be",
        "It is {} as I see",
    )

    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        drawn = luck(row, index, seed)
        colour = row["label"] if drawn.random() < 0.5 else drawn.choice(COLOURS)
        return (), drawn.choice(shapes).format(colour)

    return policy


TASKS = {
    "judged": Task(Judged, judged_rows, judged),
    "exact": Task(Plain, exact_rows, exact),
    "boxed": Task(Boxed, exact_rows, boxed),
    "coin": Task(Coin, coin_rows, coin, {"reward_range": (-0.1, 1.0)}),
    "extract": Task(Extract, extract_rows, extract),
    "lookup": Task(Lookup, lookup_rows, lookup),
    "cart": Task(Cart, cart_rows, cart),
}
