"""A job's stored records at one moment, and a check between two moments: records are added, never changed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

FOLDERS = ("trajectories", "usage", "steps")
"""Folders from which nothing is ever removed. Only step reports may change, except for their groups. A
learner that resumes writes the report of its step again, and takes the later steps again."""
SUMMED = {
    "evaluation": ("evaluationPrefill", "evaluationCachedPrefill", "evaluationSample"),
    "endpoint": ("endpointPrompt", "endpointSample"),
    "judge": ("judgePrompt", "judgeSample"),
}
"""Classes of the ledger that `.status.usage` shows as one."""
NO_AMOUNTS = ("currency", "priceBook", "priceBookHash", "priceBookProblem", "unpriced")


@dataclass(frozen=True)
class Books:
    """The stored records of a job."""

    objects: dict[str, str]
    """Key of every object in FOLDERS -> digest of its content."""
    acknowledged: dict[str, tuple[str, ...]]
    """Key of a step report -> ids of the groups that the step acknowledges."""
    usage: dict[str, Decimal]
    """The numbers of `.status.usage`."""


def books(bucket: Any, job: Mapping[str, Any], folder: Path) -> Books:
    """Read the records from the artifact store and the job's status. A copy of the store goes to the empty
    `folder`."""
    for part in FOLDERS:
        bucket.download(f"{job['status']['artifacts']['uri']}/{part}", folder / part)
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    return Books(
        objects={name: sha256(data).hexdigest() for name, data in files.items()},
        acknowledged={
            name: tuple(json.loads(data)["groups"])
            for name, data in files.items()
            if name.startswith("steps/")
        },
        usage=amounts(job),
    )


def amounts(job: Mapping[str, Any]) -> dict[str, Decimal]:
    """The amounts in `.status.usage`, the cost included."""
    usage = job.get("status", {}).get("usage", {})
    return {name: Decimal(value) for name, value in usage.items() if name not in NO_AMOUNTS}


def fell(before: Mapping[str, Decimal], after: Mapping[str, Decimal]) -> list[str]:
    """A message for each amount that has become smaller."""
    none = Decimal(0)
    return [
        f"usage {name} fell from {amount} to {after.get(name, none)}"
        for name, amount in before.items()
        if after.get(name, none) < amount
    ]


def faults(before: Books, after: Books) -> list[str]:
    """A message for each record that was lost, changed or taken back between two moments."""
    found = [f"{name} has vanished" for name in sorted(before.objects.keys() - after.objects.keys())]
    found += [
        f"{name} has changed"
        for name in sorted(before.objects.keys() & after.objects.keys())
        if before.objects[name] != after.objects[name] and not name.startswith("steps/")
    ]
    found += [
        f"{name} takes {after.acknowledged.get(name)} and no longer {groups}"
        for name, groups in before.acknowledged.items()
        if after.acknowledged.get(name) != groups
    ]
    return found + fell(before.usage, after.usage)


def events(folder: Path) -> list[dict[str, Any]]:
    """Every event of a copied ledger."""
    lines = (line for path in sorted((folder / "usage").rglob("*.jsonl")) for line in path.open())
    return [json.loads(line) for line in lines]


def counted_twice(found: list[dict[str, Any]]) -> list[str]:
    """Ids that more than one event has."""
    return [name for name, times in Counter(event["id"] for event in found).items() if times > 1]


def tokens(found: list[dict[str, Any]]) -> dict[str, int]:
    """The ledger's tokens by the classes of `.status.usage`, without the suffix `Tokens`."""
    totals: Counter[str] = Counter()
    for event in found:
        totals[event["usage_class"]] += event["quantity"]
    plain = {name: totals[name] for name in ("prefill", "cachedPrefill", "sample", "train", "discarded")}
    sums = {name: sum(totals[each] for each in classes) for name, classes in SUMMED.items()}
    return {name: round(amount) for name, amount in (plain | sums).items()}
