"""Measures the time and memory of a step on the accelerator.

It runs `train` in a separate process, and makes sections of the results.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.support import machine
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown

GIBIBYTE = 1 << 30
MEBIBYTE = 1 << 20
LIMIT_S = int(os.environ.get("SECTION_SECONDS", "600"))
"""Maximum seconds of one process of `train`."""
OF_BARE, OVER_TRL = 0.9, 1.5
WITHIN = 0.1
NAMES = {
    "ours": "ours: an optimizer step",
    "packed": "bare PyTorch: the same micro-batches, cross-entropy, clip, AdamW",
    "trl": "TRL: GRPOTrainer's loss, backward, clip, AdamW",
}
BYTES = {"full": (2 + 4 + 4 + 8, 0), "lora": (2 + 4 + 4 + 8, 2)}
"""Way of training -> bytes of a trained weight, and of a frozen weight.

A trained weight has its value in bfloat16 and float32, the float32 sum of gradients, and two moments.
"""

READ = """
    Episodes have 2 to 10 turns of unequal length, and one row each. They are trained in bfloat16, with the
    defaults of a job on a GPU. These are ZeRO 2, layers recomputed in the backward pass, and {tokens} tokens
    a micro-batch. The sides take turns in one process; a ratio is the median of those of each time.

    *Bare PyTorch* runs the very micro-batches that the learner plans, with its attention, layers recomputed
    too, and the head only where a token is trained. Gradients and AdamW are in bfloat16 there, the learner's
    in float32, and it has no objective and no statistics. *TRL* is `GRPOTrainer._compute_loss` on the same
    rows as TRL lays them out (8 a device batch, padded, PyTorch's attention), with its fused head.

    *Of the product* is the share of the rate of a large matrix product in bfloat16, measured in the same
    process. It counts the operations that the mathematics need. It does not count what is computed again,
    padding, the masked half of attention, or gradients of frozen weights.

    Memory is what PyTorch has allocated. *Expected* is bytes by the number formats alone: {bytes}.
"""

PUBLISHED = """
    *Stops training* is how long the learner does nothing else: a publication into a local folder, its parts
    being the canary and the copy to the host, and a checkpoint's copy to the local disk. A server has taken
    each version from there, and its files were compared with the tensors on the GPU bit for bit.
"""
TURNS = """
    {shape}, every weight trained. Episodes have 128 sampled tokens a turn, after 512 tokens of a prompt or 96
    of a tool's result. They are trained as one row each, and as a row a turn that holds all before. Both
    train the same tokens. Seconds are of a whole optimizer step, the two sides taken in turns.

    Operations are what the mathematics need. They are saved less than tokens are, for two reasons. The head,
    a third of this model's weights, sees only the tokens that are trained, and these are equally many on both
    sides. A token of a longer row attends to more.
"""


def full(folder: Path) -> Section:
    """Measure training of all weights."""
    return _section("full", "Full weights", "18 a weight", _found("full", folder))


def lora(folder: Path) -> Section:
    """Measure training of an adapter."""
    return _section("lora", "LoRA", "18 a weight of the adapter, 2 of the others", _found("lora", folder))


def turns(folder: Path) -> Section:
    """Compare one training row over all turns with one training row for each turn."""
    found = _found("turns", folder)
    rows = [_turns(one) for one in found["found"]]
    return Section(
        title="One row against one row a turn",
        read=prose(TURNS.format(shape=found["shape"])),
        tables=[Table("Seconds of a step", rows)],
        goals=[
            Goal(
                f"one row saves seconds as it saves operations, within {WITHIN:.0%}, at 16 turns",
                f"{rows[-1]['ratio of seconds']} of {rows[-1]['ratio of operations']}",
                rows[-1]["ratio of seconds"] >= (1 - WITHIN) * rows[-1]["ratio of operations"],
            )
        ],
    )


def _found(way: str, folder: Path) -> dict[str, Any]:
    target = folder / "found.json"
    command = [sys.executable, "-m", "bench.accelerator.train", way, str(folder), str(target)]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        subprocess.run(command, cwd=machine.ROOT, env=environ, check=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        if not target.exists():
            raise
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def _section(way: str, title: str, bytes_each: str, found: dict[str, Any]) -> Section:
    seconds: dict[str, list[float]] = found["seconds"]

    beside: dict[str, list[float]] = found.get("beside", {})
    others = {name: taken for name, taken in (seconds | beside).items() if name != "ours"}

    def over(name: str) -> float:
        ours = beside["ours"] if name in beside else seconds["ours"]
        return statistics.median(a / b for a, b in zip(others[name], ours, strict=True))

    trained, other = BYTES[way]
    expected = trained * found["trained"] + other * (found["parameters"] - found["trained"])
    memory: Row = {
        "weights GiB": _gib(found["weights bytes"]),
        "expected GiB": _gib(expected),
        "held between steps GiB": _gib(found["held bytes"]),
        "peak of a step GiB": _gib(found["peak bytes"]),
    }
    rows = [_side("ours", seconds["ours"], found, 1.0)]
    rows += [_side(name, others[name], found, over(name)) for name in NAMES if name in others]
    published = found.get("publish", [])
    proven = [one["equal"] for one in published]
    versions = [_version(one) for one in published]
    work = (
        f"{found['shape']}: {found['trained']:,} of {found['parameters']:,} weights trained; "
        f"{found['episodes']} episodes, {found['tokens']:,} tokens, {found['action tokens']:,} trained, "
        f"in {found['micro-batches']} micro-batches; attention {found['attention']}"
    )
    tables = [
        Table(work, rows),
        Table("Memory", [memory]),
    ]
    if versions:
        tables.append(Table("Publishing: versions one after the other", versions))
    if saved := found.get("checkpoint"):
        proven.append(saved["equal"])
        stopped: Row = {
            "GiB": _gib(saved["bytes"]),
            "stops training s": shown(saved["stops"]),
            "loaded again": "same bits" if saved["equal"] else "other bits",
            "the next step, twice": "same bits" if saved["twice"] else "other bits",
        }
        tables.append(Table("A checkpoint", [stopped]))
    goals = (
        [Goal(f"{OF_BARE} of bare PyTorch", f"{over('packed'):.2f}", over("packed") >= OF_BARE)]
        if "packed" in others
        else []
    )
    if "trl" in others:
        goals.append(
            Goal("a step of TRL's at 1.5 times the speed", f"{over('trl'):.2f}", over("trl") >= OVER_TRL)
        )
    if proven:
        goals.append(
            Goal(
                "what is published, or saved and loaded, has the bits of the tensors on the GPU",
                f"{sum(proven)} of {len(proven)}",
                all(proven),
            )
        )
    text = READ + ("\n" + PUBLISHED if versions else "")
    left_out = [f"{NAMES[name]} did not run: {why}." for name, why in found["failed"].items()]
    return Section(
        title=f"{title}: {found['shape']}",
        read=[*prose(text.format(tokens=found["max tokens"], bytes=bytes_each)), *left_out],
        tables=tables,
        goals=goals,
    )


def _side(name: str, seconds: list[float], found: dict[str, Any], over: float) -> Row:
    taken = statistics.median(seconds)
    return {
        "side": NAMES[name],
        "s": shown(taken),
        "each time": ", ".join(f"{one:.3g}" for one in seconds),
        "tokens/s": round(found["tokens"] / taken),
        "of the product": f"{found['operations'] / taken / found['rate']:.0%}",
        "ours is faster by": shown(over),
    }


def _version(one: dict[str, Any]) -> Row:
    return {
        "kind": one["kind"],
        "MiB": shown(one["bytes"] / MEBIBYTE),
        "stops training s": shown(one["stops"]),
        "canary s": shown(one["canary"]),
        "copy s": shown(one["copy"]),
        "taken in s": shown(one["take"]),
        "bytes": "those on the GPU" if one["equal"] else "others",
    }


def _turns(one: dict[str, Any]) -> Row:
    tokens, seconds, work = one["tokens"], one["seconds"], one["operations"]
    ratios = [b / a for a, b in zip(seconds["one"], seconds["a turn"], strict=True)]
    return {
        "turns": one["turns"],
        "episodes": one["episodes"],
        "tokens, one row": tokens["one"],
        "tokens, a row a turn": tokens["a turn"],
        "ratio of tokens": shown(tokens["a turn"] / tokens["one"]),
        "ratio of operations": shown(work["a turn"] / work["one"]),
        "s, one row": shown(statistics.median(seconds["one"])),
        "s, a row a turn": shown(statistics.median(seconds["a turn"])),
        "ratio of seconds": shown(statistics.median(ratios)),
    }


def _gib(size: float) -> float:
    return shown(size / GIBIBYTE)
