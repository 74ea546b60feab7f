"""Runs the preflight of a job whose inputs are local files, and keeps its reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
from faulty_servers import Scripted
from toy_tokenizer import tokenizer

from headway_api.artifacts import Layout
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.status import Preflight
from headway_api.store import FileStore
from headway_coordinator.preflight.run import Runner
from headway_coordinator.sandboxes import Broker


def spec(folder: Path, **blocks: Any) -> RLTrainingJobSpec:
    content: dict[str, Any] = {
        "model": {"base": f"file://{folder}/model"},
        "data": {name: {"uri": f"file://{folder}/{name}.jsonl"} for name in ("train", "validation")},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "preflight": {"episodes": 0},
        "output": {"uri": f"file://{folder}/out"},
        "algorithm": {"batchSize": 2, "groupSize": 2},
        "rollout": {"sampling": {"maxTokens": 20}, "timeoutSeconds": 10},
        "agent": {"builtin": {"maxTurns": 4}},
        "pendingDeadlineSeconds": 20,
    }
    return RLTrainingJobSpec.model_validate(content | blocks)


def safetensors(shapes: dict[str, tuple[int, ...]], padding: int = 0) -> bytes:
    """A safetensors header, without the weights that it describes."""
    entries = {
        name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode() + b" " * padding
    return len(header).to_bytes(8, "little") + header


def write_inputs(folder: Path) -> Path:
    """A model of one linear module with its tokenizer, and two rows of each dataset; returns `folder`."""
    tokenizer(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    weights = safetensors({"model.layers.0.self_attn.q_proj.weight": (8, 8)})
    (folder / "model" / "model.safetensors").write_bytes(weights)
    for name, prompts in (("train", "ab"), ("validation", "cd")):
        (folder / f"{name}.jsonl").write_text("".join(f'{{"prompt": "{text}"}}\n' for text in prompts))
    return folder


class Bench:
    """A preflight runner, and its reports."""

    def __init__(self, of: RLTrainingJobSpec) -> None:
        self.reports: list[Preflight] = []
        self.layout = Layout(of.output.uri, "team", "refunds", "uid")
        self.runner = Runner(of, self.layout, self.reports.append)

    def basics(self, folder: Path) -> Any:
        return self.runner.basics(FileStore(), folder / "cache")

    async def environment(self, folder: Path, leases: Scripted) -> None:
        async with aiohttp.ClientSession() as http:
            await self.runner.environment(self.basics(folder), Broker(http, leases.url, "t", "me"), 0)

    @property
    def failed(self) -> list[tuple[str, str | None]]:
        return [(check.name, check.field) for check in self.reports[-1].checks if not check.passed]
