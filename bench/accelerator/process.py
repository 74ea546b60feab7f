"""Compares a learner process that is killed and restarted on the accelerator with an uninterrupted one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import learner_rig as rig
import torch
from safetensors.torch import load_file
from tiny_model import write_model
from torch import Tensor

from bench.accelerator import apart, hardware
from bench.support.report import Goal, Row, Section, Table, prose
from headway_api.config import JobConfig
from headway_api.records import StepReport
from headway_api.store import FileStore
from headway_rollout.weights import chain
from headway_rollout.weights.chain import VersionOnDisk
from headway_trainer import model as models
from headway_trainer.publish.canary import TOLERANCE

STEPS = 4
KILLED_AT = 2
"""The learner is killed once this step is durable."""
CLOSE = 0.02
"""Largest allowed relative difference between the weight changes of both runs.

Bits may differ, because some kernels add numbers in a random order.
"""
LORA: dict[str, Any] = {"lora": {"rank": 8, "alpha": 16}}
KINDS: dict[str, dict[str, Any]] = {
    "LoRA, bfloat16": {**LORA, "dtype": "bfloat16"},
    "full, bfloat16": {"dtype": "bfloat16"},
    "full, float32": {"dtype": "float32"},
}
READ = prose(f"""
    `python -m headway_trainer.launch`, the process that a learner's pod runs, takes {STEPS} steps of a small
    model. A coordinator hands out the batches. A second such process is killed by SIGKILL once step
    {KILLED_AT} is durable, starts again, and goes on. What the last version changed since the first is
    compared.

    *Canary* is a difference of log-probabilities, in nats. The learner publishes some with its last weights,
    and transformers computes the same of the published files, on the CPU in float32. Beside it is what is
    tolerated of a rollout server. Weights that travel as deltas are taken as a server takes them, so that
    every tensor is proven by its digest.
""")


@dataclass(frozen=True)
class Life:
    """The results of one learner: its reports, its files and its log."""

    config: JobConfig
    reports: Mapping[int, StepReport]
    folder: Path
    log: str

    def weights(self, step: int) -> dict[str, Tensor]:
        """The weights that were published for `step`."""
        found = load_file(self.files(step) / self._name)
        return {name: tensor.float() for name, tensor in found.items()}

    def files(self, step: int) -> Path:
        """A folder with the full weights or the adapter of `step`."""
        manifest = self.reports[step].weights
        if not manifest.chain:
            return Path(manifest.uri.removeprefix("file://"))
        target = self.folder / "taken" / f"{step:06d}"
        if not target.exists():
            held: VersionOnDisk | None = None
            chain.fetch(FileStore(), manifest, target, held)
        return target

    @property
    def _name(self) -> str:
        lora = self.config.spec.model.effective_lora is not None
        return "adapter_model.safetensors" if lora else "model.safetensors"


def measure(folder: Path) -> Section:
    """Measure both runs for each kind of weights."""
    base = write_model(folder / "base")
    rows = asyncio.run(_all(folder, base))
    differ = max(row["apart"] for row in rows)
    equal = sum(row["bits"] == "same" for row in rows)
    worst = max(row["canary"] / row["tolerated"] for row in rows)
    return Section(
        title="The learner's process, killed and resumed",
        read=READ,
        tables=[Table(f"After {STEPS} steps", rows)],
        goals=[
            Goal(
                f"resumed, it ends within {CLOSE:g} of one left alone",
                f"{differ:.1e} at most; equal bits: {equal} of {len(rows)}",
                differ <= CLOSE,
            ),
            Goal("the canary holds on other kernels", f"{worst:.2f} of what is tolerated", worst <= 1),
        ],
    )


async def _all(folder: Path, base: Path) -> list[Row]:
    lives: dict[str, tuple[Life, Life]] = {}

    async def both(name: str) -> None:
        place = folder / name.replace(", ", "-")
        made = [_life(place / str(kill), base, name, kill=kill) for kill in (False, True)]
        calm, killed = await asyncio.gather(*made)
        lives[name] = (calm, killed)

    for name in KINDS if hardware.rehearsing() else ():
        await both(name)
    if not lives:
        await asyncio.gather(*(both(name) for name in KINDS))
    return [_row(name, base, *lives[name]) for name in KINDS]


async def _life(folder: Path, base: Path, name: str, *, kill: bool) -> Life:
    config = rig.job(folder, base, **KINDS[name], checkpoints={"everySteps": 1, "keepLast": STEPS})
    served = rig.ScriptedCoordinator([rig.batch(n, groups=3, seed=5) for n in range(1, STEPS + 1)])
    async with served.serving() as url:
        async with rig.learner(config, folder, url) as process:
            if kill:
                await rig.reached(served, KILLED_AT, 300, durable=True)
                process.kill()
            code = await process.exit(300)
            assert kill or code == 0, process.log.read_text()[-4000:]
        if kill:
            async with rig.learner(config, folder, url) as process:
                assert await process.exit(300) == 0, process.log.read_text()[-4000:]
    reports = {report.step: report for report in served.reports}
    return Life(config, reports, folder, (folder / "learner.log").read_text())


def _row(name: str, base: Path, calm: Life, killed: Life) -> Row:
    first, last, other = calm.weights(0), calm.weights(STEPS), killed.weights(STEPS)
    names = sorted(first)

    def changed(weights: dict[str, Tensor]) -> Tensor:
        return torch.cat([(weights[one] - first[one]).flatten() for one in names])

    bits = all(torch.equal(last[one], other[one]) for one in names)
    dtype = models.DTYPES[calm.config.spec.model.dtype]
    chosen = next(line for line in map(_parsed, calm.log.splitlines()) if line.get("event") == "layout")
    return {
        "job": name,
        "attention": chosen["attention"],
        "published as": calm.reports[STEPS].weights.kind,
        "bits": "same" if bits else "differ",
        "apart": float(f"{apart.relative(changed(other), changed(last)):.2g}"),
        "canary": float(f"{_canary(base, calm):.2g}"),
        "tolerated": TOLERANCE[dtype],
    }


def _canary(base: Path, life: Life) -> float:
    """Mean difference between the canary's log-probabilities and those of the published files."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if life.config.spec.model.effective_lora is None:
        left = model.load_state_dict(life.weights(STEPS), strict=False)
        assert set(left.missing_keys) <= {"lm_head.weight"}, left
        assert not left.unexpected_keys, left
    else:
        model = PeftModel.from_pretrained(model, life.files(STEPS))
    canary = life.reports[STEPS].weights.canary
    tokens = torch.tensor([canary.tokens])
    with torch.no_grad():
        logprobs = model(input_ids=tokens).logits[0, :-1].float().log_softmax(-1)
    found = logprobs.gather(1, tokens[0, 1:, None]).squeeze(1)
    return float((found - torch.tensor(canary.logprobs)).abs().mean())


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
