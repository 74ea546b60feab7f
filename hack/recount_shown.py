"""Computes how an evaluation's status and /metrics must show its measures and its bill.

The module is independent of Headway on purpose, like recount_eval.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import fsum
from typing import Any

from recount_prices import Costs, Line

Json = Any
Part = tuple[str, ...]
"""The name of a metric without its prefix, followed by its labels `class` and `model` if it has them."""
TOGETHER = ("evaluation", "endpoint", "judge")
"""Prefixes of classes. All classes with the same prefix are shown as one."""
FIELDS = ("prefill", "cachedPrefill", "sample", "train", "discarded", *TOGETHER)


def kind(usage_class: str) -> str:
    """The part of the bill that shows a class."""
    found = next((name for name in TOGETHER if usage_class.startswith(name)), usage_class)
    return found.removesuffix("Seconds")


def other_model(used: Mapping[str, Any]) -> str | None:
    """The model of a line of usage; None for the job's own model. For accelerators, the field is not a
    model."""
    return None if used["class"] == "acceleratorSeconds" else used.get("model")


def models(lines: Iterable[Line]) -> set[str]:
    """All models, except the job's own, that some lines used."""
    return {model for line in lines for each in line["usage"] if (model := other_model(each)) is not None}


def in_status(total: Mapping[str, float]) -> dict[str, float]:
    """The numbers of `status.usage` except cost: tokens by kind, and seconds of sandboxes."""
    found = {
        f"{name}Tokens": sum(round(amount) for of, amount in total.items() if kind(of) == name)
        for name in FIELDS
    }
    found["totalTokens"] = found["prefillTokens"] + found["sampleTokens"] + found["trainTokens"]
    return found | {"sandboxSeconds": total.get("sandboxSeconds", 0.0)}


def in_metrics(
    total: Mapping[str, float], cost: float, lines: Iterable[Line], bill: Costs
) -> dict[Part, float]:
    """The values of the metrics `usage/*` and `cost/*` that are not 0."""
    found: dict[Part, float] = {("usage_cost_usd",): cost}
    for name, amount in total.items():
        if not name.endswith("Seconds"):
            found["usage_tokens_total", name] = amount
    found["usage_sandbox_seconds_total",] = total.get("sandboxSeconds", 0.0)
    parts: dict[Part, list[float]] = {}
    for used in (used for line in lines for used in line["usage"]):
        part = ("cost_usd", kind(used["class"]), other_model(used) or "")
        parts.setdefault(part, []).append(bill.bill([{"usage": [used]}]))
    found |= {part: fsum(amounts) for part, amounts in parts.items()}
    return {part: amount for part, amount in found.items() if amount}


def read_metrics(text: str) -> dict[Part, float]:
    """The values of the metrics `usage/*` and `cost/*` that are not 0, from the text of /metrics."""
    gauge = re.compile(
        r"^[a-z]+_(usage_tokens_total|usage_sandbox_seconds_total|usage_cost_usd|cost_usd)\{(.*)\} (\S+)$",
        re.MULTILINE,
    )
    found: dict[Part, float] = {}
    for name, labels, number in gauge.findall(text):
        label = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        part = (name, *(label[key] for key in ("class", "model") if key in label))
        if float(number):
            found[part] = float(number)
    return found


def in_a_line(estimate: Json) -> str | None:
    """An estimate in the form that kubectl shows."""
    if estimate is None:
        return None
    if estimate["low"] is None:
        why = "every row alike" if estimate.get("why") == "NoSpread" else "too few rows"
        return f"{estimate['value']:.2f} ({why})"
    return f"{estimate['value']:.2f} ± {(estimate['high'] - estimate['low']) / 2:.2f}"
