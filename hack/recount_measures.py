"""Computes the values of each measure of docs/evaluation.md from lines of the table of tries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from math import comb
from typing import Any

from recount_statistics import Value, Values

Line = Mapping[str, Any]
COSTS, COUNTED = ("cost", "cost_per_success"), ("prompt_tokens", "cached_tokens", "sampled_tokens")


def word(name: str) -> str:
    """A name with all characters replaced that a measure's name may not contain."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def tool(name: str) -> str:
    """A tool's name as part of a measure's name."""
    return word(name)[:64] or "_"


def apart(name: str) -> str:
    """An environment's metric as part of a measure's name, with a hash if the name must be changed."""
    short = word(name)[:64]
    return name if name and short == name else f"{short[:55]}_{sha256(name.encode()).hexdigest()[:8]}"


def part(line: Line, name: str, cost: float) -> tuple[float, float] | None:
    """What one try adds to the numerator and denominator of a measure; None if it adds nothing."""
    scored, calls = line["outcome"] != "InfraError", dict(line["tool_calls_by_tool"])
    if name == "infra_error":
        return float(not scored), 1.0
    if name in COSTS:
        return cost, float(scored if name == "cost" else line["success"])
    if not scored:
        return None
    if name == "agent_error":
        return float(line["outcome"] == "AgentError"), 1.0
    if name in ("failed_tool_calls", "malformed_tool_calls"):
        below = sum(calls.values()) + (line[name] if name.startswith("malformed") else 0)
        return (line[name], below) if below else None
    if name.startswith("tool_calls_"):
        return sum(n for called, n in calls.items() if tool(called) == name[len("tool_calls_") :]), 1.0
    if name.startswith("metric_"):
        found = [v for key, v in line["metrics"] if apart(key) == name[len("metric_") :]]
        return (found[0], 1.0) if found else None
    return None if line[name] is None else (float(line[name]), 1.0)


def passed(lines: Sequence[Line], name: str) -> float | None:
    """pass@k or pass^k of one row."""
    kind, k_text, by_reward = re.fullmatch(r"pass_(at|power)_(\d+)(_by_reward)?", name).groups()  # type: ignore[union-attr]
    scored = [line for line in lines if line["outcome"] != "InfraError"]
    good = sum(line["success_by_reward" if by_reward else "success"] for line in scored)
    n, k = len(scored), int(k_text)
    if n < k:
        return None
    return comb(good, k) / comb(n, k) if kind == "power" else 1 - comb(n - good, k) / comb(n, k)


def values(lines: Sequence[Line], name: str, costs: Mapping[str, Decimal | None]) -> Values:
    """A measure's values over some tries. For costs and token counts, it is empty if a try does not have
    them."""
    found: Values = {}
    if name in COSTS and any(costs[line["episode_id"]] is None for line in lines):
        return found
    if name in COUNTED and any(line["uncounted_turns"] for line in lines):
        return found
    if name.startswith("pass_"):
        rows: dict[int, list[Line]] = {}
        for line in lines:
            rows.setdefault(line["row"], []).append(line)
        for row, members in rows.items():
            if (value := passed(members, name)) is not None:
                found[row, -1] = Value(members[0]["cluster"], value, 1.0)
        return found
    for line in lines:
        if (pair := part(line, name, float(costs[line["episode_id"]] or 0))) is not None:
            found[line["row"], line["try"]] = Value(line["cluster"], *pair)
    return found
