"""Write the rows: data/train.jsonl and data/validation.jsonl.

    python generate.py [--out data] [--seed 0]

The same seed writes the same rows. Each parcel is in only one split.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from environment import ACTION, DAY

ADJECTIVES = (
    "amber", "bold", "calm", "coral", "dusty", "eager", "fair", "glad", "hazel", "ivory", "jolly", "keen",
    "lucky", "mellow", "noble", "pale", "quiet", "rapid", "sunny", "tidy",
)  # fmt: skip
ANIMALS = (
    "badger", "camel", "crane", "dingo", "eagle", "ferret", "finch", "gecko", "heron", "ibex", "jackal",
    "koala", "lemur", "lynx", "moose", "newt", "otter", "panda", "quail", "raven", "stork", "tapir",
    "walrus", "zebra",
)  # fmt: skip
DEPOTS = ("north", "south", "east", "west")
VALIDATION = 64
"""Number of rows for validation, which are never trained on."""


def row(parcel: str, drawn: random.Random) -> dict[str, Any]:
    """One case: its prompt, the recorded calls, and the answer that the procedure prescribes."""
    state, depot, queue = drawn.choice(list(ACTION)), drawn.choice(DEPOTS), drawn.choice(list(DAY))
    recorded = [
        {"tool": "get_parcel", "arguments": {"parcel": parcel}, "answer": {"state": state, "depot": depot}},
        {"tool": "get_depot", "arguments": {"depot": depot}, "answer": {"queue": queue}},
    ]
    return {
        "prompt": f"Handle parcel {parcel}.",
        "parcel": parcel,
        "recorded": recorded,
        "expected": {"action": ACTION[state], "day": DAY[queue]},
    }


def splits(seed: int = 0) -> dict[str, list[dict[str, Any]]]:
    """The rows of each split."""
    drawn = random.Random(f"rows/{seed}")
    parcels = [f"{adjective}-{animal}" for adjective in ADJECTIVES for animal in ANIMALS]
    drawn.shuffle(parcels)
    rows = [row(parcel, drawn) for parcel in parcels]
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
