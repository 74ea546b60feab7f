"""Recomputes a job's bill from its stored trajectories with `hack/recount.py`, and compares it with the
status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from headway_demo.kube import Kube
from headway_demo.settings import NAMESPACE, ROOT


class BillMismatchError(Exception):
    """Two counts of a job's usage or results differ."""


@dataclass(frozen=True)
class Bill:
    """The result of a recount."""

    tokens: dict[str, int]
    """Tokens by class of `.status.usage`, without the suffix `Tokens`."""
    by_class: dict[str, int]
    """Tokens by class of the price book."""
    cost_by_class: dict[str, str]
    cost: str


def status_tokens(job: Mapping[str, Any], classes: Mapping[str, int]) -> dict[str, int]:
    """The tokens of these classes in the job's status."""
    return {name: int(job["status"]["usage"].get(f"{name}Tokens", 0)) for name in classes}


def recount(run: Path, **prices: str) -> Bill:
    """Run `hack/recount.py` on a copy of a job's folder. The job must have group_based advantages.

    `prices` has US dollars per million tokens by class, instead of those of the default price book.
    """
    command = [sys.executable, str(ROOT / "hack" / "recount.py"), f"file://{run.resolve()}", "--json"]
    command += [word for name, price in prices.items() for word in ("--price", f"{name}={price}")]
    done = subprocess.run(command, check=True, text=True, capture_output=True, timeout=300)
    found = json.loads(done.stdout)
    return Bill(found["tokens"], found["byClass"], found["costByClass"], found["cost"])


def of_namespace(kube: Kube, *jobs: Mapping[str, Any]) -> str:
    """A line about the usage of the namespace's jobs according to its budget, once `jobs` have ended.

    Raises:
        BillMismatchError: the budget counts less than the bills of `jobs`.
    """

    def counted() -> bool:
        return status().get("endedJobs", 0) >= len(jobs)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = kube.get("rlbudget", "default", "-n", NAMESPACE).get("status", {})
        return found

    kube.wait(
        "the namespace's budget to count the jobs", counted, deadline_s=120, explain=lambda: str(status())
    )
    [limit] = [each for each in status()["limits"] if each["name"] == "usd"]
    bills = sum(Decimal(job["status"]["usage"]["cost"]) for job in jobs)
    if Decimal(limit["ended"]) < bills:
        raise BillMismatchError(f"the RLBudget counts {limit['ended']} USD, and the jobs' bills are {bills}")
    used, left = limit["ended"], limit["left"]
    return f"  the namespace's jobs have used {used} of {limit['limit']} USD, and {left} is left"


def verified(job: Mapping[str, Any], run: Path) -> str:
    """The job's bill as text, after a recount.

    Raises:
        BillMismatchError: the recount differs in the tokens or in the cost.
    """
    bill, usage = recount(run), job["status"]["usage"]
    claimed = status_tokens(job, bill.tokens)
    if (claimed, usage["cost"]) != (bill.tokens, bill.cost):
        raise BillMismatchError(
            f"status says {claimed} and {usage['cost']}, the trajectories {bill.tokens} and {bill.cost}"
        )
    lines = [
        f"  {name:<26}{count:>10,}{float(bill.cost_by_class[name]):>12.4f} {usage['currency']}"
        if name in bill.cost_by_class
        else f"  {name:<26}{count:>10,}{'unpriced':>12}"
        for name, count in bill.by_class.items()
    ]
    total = f"  {'total':<26}{sum(bill.by_class.values()):>10,}{bill.cost:>12} {usage['currency']}"
    note = f"  prices {usage['priceBook']}; recounted from the stored trajectories: equal to .status.usage"
    return "\n".join([*lines, total, note])
