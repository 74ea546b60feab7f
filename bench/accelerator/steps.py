"""Compares the optimizer step on the accelerator with the same step on the CPU, and with a repetition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import step_variants
from tiny_model import write_model

from bench.accelerator import apart
from bench.accelerator.hardware import rehearsing
from bench.support.report import Goal, Row, Section, Table, prose
from headway_api.spec.algorithm import CORRECTIONS, LOSSES, REDUCTIONS

VALUES, UPDATES = 1e-4, 1e-3
"""Largest allowed errors in float32: of loss, gradient norm and metrics, and of the updates of weights."""
WORSE = 1.5
"""Largest allowed error in bfloat16, as a multiple of the error in bfloat16 on the CPU. Both compare with
float32.
"""
LEAST = 0.01
"""Smaller errors of the CPU's bfloat16 count as this number, because they are only a few roundings."""
LORA = {"lora": True}
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
"""Environment variables that hide the accelerators from a process."""
Variants = dict[str, dict[str, Any]]


def float32() -> Variants:
    """Variants in float32: every loss, correction, reduction and further term, and every ZeRO stage."""
    stage: dict[str, Any] = {"zeroStage": 1}
    found: Variants = {f"{loss}": stage | {"algorithm": {"loss": loss}} for loss in LOSSES}
    found |= {f"{loss}, lora": stage | LORA | {"algorithm": {"loss": loss}} for loss in LOSSES}
    for correction in CORRECTIONS:
        found[f"correction {correction}"] = stage | {"algorithm": {"correction": correction}, "updates": 2}
    for reduction in REDUCTIONS:
        found[f"reduction {reduction}"] = stage | {"algorithm": {"reduction": reduction}}
    for method in ("none", "std"):
        found[f"normalize {method}"] = stage | {"algorithm": {"advantage": {"normalize": method}}}
    found |= {
        "divergence": stage | {"algorithm": {"kl": {"coefficient": 0.1}}},
        "divergence, lora": stage | LORA | {"algorithm": {"kl": {"coefficient": 10.0}}},
        "entropy": stage | {"algorithm": {"entropy": {"coefficient": 1.0}}},
        "padded": stage | {"packed": False},
        "head in chunks": stage | {"chunk": 4 * 512},
        "layers recomputed": stage | {"checkpointing": True, "tokens": 100},
        "ZeRO 0": {"zeroStage": 0},
        "ZeRO 2": {"zeroStage": 2, "tokens": 40, "save": True},
        "ZeRO 3": {"zeroStage": 3, "tokens": 40, "checkpointing": True, "save": True},
    }
    return found | {f"ZeRO {n}, offload": {"zeroStage": n, "offload": "cpu"} for n in (1, 2, 3)}


def bfloat16() -> Variants:
    """Variants in bfloat16: every loss, and every ZeRO stage that bfloat16 allows."""
    stage: dict[str, Any] = {"zeroStage": 2, "dtype": "bfloat16", "save": True}
    found: Variants = {f"bf16 {loss}": stage | {"algorithm": {"loss": loss}} for loss in LOSSES}
    found |= {f"bf16 {loss}, lora": stage | LORA | {"algorithm": {"loss": loss}} for loss in LOSSES}
    found["bf16 ZeRO 1"] = stage | {"zeroStage": 1, "tokens": 40, "checkpointing": True}
    found["bf16 ZeRO 3"] = stage | {"zeroStage": 3, "tokens": 40, "checkpointing": True}
    found["bf16 ZeRO 2, offload"] = stage | {"offload": "cpu"}
    return found


READ = prose(f"""
    A model of Qwen3's shape with two layers takes {step_variants.STEPS} optimizer steps on packed episodes of
    several turns, on the accelerator and on the CPU. The program is that of the test which compares the
    learner with plain PyTorch. It compares the losses, the norms of the gradients, and every metric of the
    tokens (*metrics*). It also compares what the steps changed in the optimizer's float32 weights (*update*).
    Each is relative to the CPU's in float32. *CPU's bf16* is how far the CPU's own bfloat16 is from its
    float32: what the format costs.

    *Twice* says whether another process on the accelerator ends with the same bits. *Resumed* says the same
    of a process that loads what was saved before the last step, and takes that step. *State* says whether
    what it loaded, moments included, has the bits that were saved.
""")


def measure(folder: Path) -> Section:
    """Run all variants in three processes, one on the CPU and two on the accelerator.

    Then another process resumes the variants with a saved state.
    """
    model = write_model(folder / "base")
    given = {_key(name): settings | {"state": True} for name, settings in (float32() | bfloat16()).items()}
    plain = {f"{key}-plain": _plain(s) for key, s in given.items() if "dtype" in s}
    runs: dict[str, tuple[Variants, Mapping[str, str]]] = {
        "cpu": (given | plain, HIDDEN),
        "one": (given, {}),
        "two": (given, {}),
    }
    with ThreadPoolExecutor(1 if rehearsing() else len(runs)) as threads:
        for done in [
            threads.submit(step_variants.start, model, folder / name, variants, 1, environ)
            for name, (variants, environ) in runs.items()
        ]:
            done.result()
    saved = {key: settings for key, settings in given.items() if settings.get("save")}
    again = {
        key: settings | {"save": False, "load": {"folder": str(folder / "one" / f"{key}.state"), "ranks": 1}}
        for key, settings in saved.items()
    }
    step_variants.start(model, folder / "again", again, 1)
    exact = [_row(folder, name, saved) for name in float32()]
    rounded = [_row(folder, name, saved, "-plain") for name in bfloat16()]
    return section(exact, rounded)


def section(exact: list[Row], rounded: list[Row]) -> Section:
    """The section of the steps in float32 and in bfloat16, with its tables and goals."""
    values = max(max(row[name] for name in ("loss", "norm", "metrics")) for row in exact)
    update = max(row["update"] for row in exact)
    worst = max(row["update"] / max(row["CPU's bf16"], LEAST) for row in rounded)
    states = [row["state"] for row in (*exact, *rounded) if row["state"]]
    kernels = ", ".join(sorted({row["attention"] for row in rounded}))
    return Section(
        title="An optimizer step, against the CPU's",
        read=READ,
        tables=[Table("float32", exact), Table(f"bfloat16 (attention: {kernels})", rounded)],
        goals=[
            Goal(
                f"float32: values within {VALUES:g} and updates within {UPDATES:g} of the CPU's",
                f"{values:.1e} and {update:.1e}",
                values <= VALUES and update <= UPDATES,
            ),
            Goal(
                f"bfloat16: updates at most {WORSE} times as far from float32 as the CPU's bfloat16",
                f"{worst:.2f} times",
                worst <= WORSE,
            ),
            Goal(
                "a resumed learner has the bits that were saved",
                f"{states.count('same')} of {len(states)}",
                set(states) == {"same"},
            ),
        ],
    )


def _row(folder: Path, name: str, saved: Mapping[str, Any], reference: str = "") -> Row:
    key = _key(name)
    one, two, again = (folder / run / key for run in ("one", "two", "again"))
    cpu = folder / "cpu" / f"{key}{reference}"
    mine, theirs = (json.loads(path.with_suffix(".json").read_text()) for path in (one, cpu))
    row: Row = {
        "step": name,
        "loss": _short(apart.numbers(mine["losses"], theirs["losses"])),
        "norm": _short(apart.numbers(mine["norms"], theirs["norms"])),
        "metrics": _short(max(map(_metrics, mine["tokens"], theirs["tokens"]))),
        "update": _short(apart.updates(one, cpu)),
    }
    if reference:
        row["CPU's bf16"] = _short(apart.updates(folder / "cpu" / key, cpu))
        row["attention"] = mine["attention"]
    row["twice"] = _compared(one.with_suffix(".end"), two.with_suffix(".end"))
    row["resumed"] = row["state"] = ""
    if key in saved:
        row["resumed"] = _compared(one.with_suffix(".end"), again.with_suffix(".end"))
        row["state"] = _compared(one.with_suffix(".last"), again.with_suffix(".last"))
    return row


def _metrics(found: Mapping[str, float], expected: Mapping[str, float]) -> float:
    return apart.numbers([found[name] for name in expected], list(expected.values()))


def _compared(one: Path, other: Path) -> str:
    return "same" if apart.same(one, other) else "differ"


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the same step in float32."""
    return {name: value for name, value in settings.items() if name not in ("dtype", "save")}


def _key(name: str) -> str:
    return name.replace(" ", "-").replace(",", "")


def _short(value: float) -> float:
    return float(f"{value:.2g}")
