"""Write the rows: data/train.jsonl and data/validation.jsonl.

    python generate.py [--out data] [--seed 0]

The same seed writes the same rows. Each problem is in only one split.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path
from typing import Any

NUMBERS = range(2, 10)
VALIDATION = 64
"""Number of rows for validation, which are never trained on."""


def row(boxes: int, each: int, broken: int) -> dict[str, Any]:
    """One problem."""
    text = f"{boxes} boxes of {each} jars, {broken} broke. How many were packed, and how many are left?"
    return {"prompt": text, "boxes": boxes, "each": each, "broken": broken}


def splits(seed: int = 0) -> dict[str, list[dict[str, Any]]]:
    """The rows of each split."""
    problems = [each for each in itertools.product(NUMBERS, NUMBERS, NUMBERS) if each[2] < each[0] * each[1]]
    random.Random(f"rows/{seed}").shuffle(problems)
    rows = [row(*problem) for problem in problems]
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
