"""Write the rows: data/train.jsonl and data/validation.jsonl.

    python generate.py [--out data] [--seed 0]

The same seed writes the same rows. Each loan is in only one split.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path
from typing import Any

from environment import DAYS, PLACE

MEMBERS = (
    "badger", "camel", "crane", "dingo", "eagle", "ferret", "finch", "gecko", "heron", "ibex", "jackal",
    "koala", "lemur", "lynx", "moose", "newt", "otter", "panda", "quail", "raven", "stork", "tapir",
    "walrus", "zebra",
)  # fmt: skip
BOOKS = (
    "atlas", "ballad", "bible", "comic", "diary", "essay", "fable", "guide", "hymnal", "legend", "manual",
    "memoir", "novel", "opera", "primer", "psalter", "saga", "satire", "sequel", "thriller",
)  # fmt: skip
VALIDATION = 64
"""Number of rows for validation, which are never trained on."""


def row(member: str, book: str, drawn: random.Random) -> dict[str, Any]:
    """The row of one loan, with a card and a shelf drawn at random."""
    return {
        "prompt": f"Lend {book} to {member}.",
        "member": member,
        "book": book,
        "card": drawn.choice(list(DAYS)),
        "shelf": drawn.choice(list(PLACE)),
    }


def splits(seed: int = 0) -> dict[str, list[dict[str, Any]]]:
    """The rows of each split."""
    drawn = random.Random(f"rows/{seed}")
    loans = list(itertools.product(MEMBERS, BOOKS))
    drawn.shuffle(loans)
    rows = [row(*loan, drawn) for loan in loans]
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
