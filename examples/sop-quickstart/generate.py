"""Write the data set: train.jsonl, validation.jsonl and test.jsonl.

    python generate.py --out data [--seed 0] [--validation 100] [--test 160]

The hash of a case id decides its split, whatever the seed. So no case is ever in two splits. The seed only
changes the order of the rows.
"""

from __future__ import annotations

import argparse
import json
import random
from hashlib import blake2b
from pathlib import Path

from environment import case_ids

SPLITS = ("train", "validation", "test")


def split_of(case_id: str) -> str:
    """The split of a case: about a tenth of all cases each for validation and test, the rest for training."""
    tenth = blake2b(case_id.encode(), digest_size=8, person=b"split").digest()[0] * 10 // 256
    return {0: "validation", 1: "test"}.get(tenth, "train")


def rows(split: str, seed: int) -> list[dict[str, str]]:
    """The rows of a split, shuffled by `seed`."""
    cases = [case for case in case_ids() if split_of(case) == split]
    random.Random(f"{seed}/{split}").shuffle(cases)
    return [{"prompt": f"Handle case {case}.", "case_id": case} for case in cases]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validation", type=int, default=100, help="rows at most")
    parser.add_argument("--test", type=int, default=160, help="rows at most")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        kept = rows(split, options.seed)[: getattr(options, split, None)]
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        (options.out / f"{split}.jsonl").write_text(lines)
        print(f"{split}: {len(kept)} rows")


if __name__ == "__main__":
    main()
