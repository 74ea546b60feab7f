"""Write the rows: data/train.jsonl and data/validation.jsonl.

    python generate.py [--out data] [--seed 0]

The same seed writes the same rows. Each request is in only one split.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path
from typing import Any

from environment import HOURS, SEATS

NAMES = (
    "badger", "beaver", "bison", "camel", "cobra", "crane", "dingo", "eagle", "falcon", "ferret", "finch",
    "gecko", "gibbon", "heron", "hyena", "ibex", "jackal", "koala", "lemur", "lion", "llama", "lynx",
    "marten", "moose", "newt", "ocelot", "otter", "owl", "panda", "parrot", "puffin", "quail", "rabbit",
    "raven", "salmon", "shrew", "stork", "tapir", "walrus", "zebra",
)  # fmt: skip
PEOPLE = (2, 4, 6)
VALIDATION = 64
"""Number of rows for validation, which are never trained on."""


def row(name: str, hour: str, people: int, drawn: random.Random) -> dict[str, Any]:
    """The row of one request. The right room is drawn first, so that each room is often the right one."""
    fitting = [room for room, seats in SEATS.items() if seats >= people]
    wanted = drawn.choice(fitting)
    smaller = fitting[: fitting.index(wanted)]
    others = [room for room in SEATS if room not in (*smaller, wanted) and drawn.random() < 0.5]
    return {
        "prompt": f"Book a room at {hour} for {name}, {people} people.",
        "name": name,
        "hour": hour,
        "people": people,
        "taken": sorted([*smaller, *others]),
    }


def splits(seed: int = 0) -> dict[str, list[dict[str, Any]]]:
    """The rows of each split."""
    drawn = random.Random(f"rows/{seed}")
    requests = list(itertools.product(NAMES, HOURS, PEOPLE))
    drawn.shuffle(requests)
    rows = [row(*request, drawn) for request in requests]
    return {"validation": rows[:VALIDATION], "train": rows[VALIDATION:]}


def main() -> None:
    """Write a file for each split."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for split, rows in splits(options.seed).items():
        (options.out / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{split}: {len(rows)} rows")


if __name__ == "__main__":
    main()
