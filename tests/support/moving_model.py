"""A model in bfloat16 whose steps are too small for a canary to notice, and a function that publishes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_server import CANARY_TOKENS, RolloutServer, request, score, version

from headway_api.records import Canary, WeightsManifest
from headway_api.store import FileStore

if TYPE_CHECKING:
    from torch import Tensor

    from headway_trainer.publish.backends import WeightPublisher

EMBEDDING = "model.embed_tokens.weight"
TOLERANCE = 0.2
"""Tolerance of the canary: as much as bfloat16 needs, and far more than the effect of a step."""


class MovingModel:
    """A model, and the store that it is published to."""

    def __init__(self, folder: Path, base: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.store = folder / "store"
        self.model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()

    def step(self) -> None:
        """Change a few elements of every tensor by one unit in the last place."""
        import torch

        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.view(torch.int16).flatten()[::100] += 1

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all parameters, by name."""
        return {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}

    def publish(self, by: WeightPublisher, step: int) -> WeightsManifest:
        """Publish the current weights, as the learner would."""
        uri = f"file://{self.store}/{step:06d}"
        published = by.publish(FileStore(), uri, version(step), self.tensors())
        canary = Canary(tokens=CANARY_TOKENS, logprobs=score(self.model, CANARY_TOKENS), tolerance=TOLERANCE)
        return published.manifest(uri, version(step), canary)


def engine_digests(server: RolloutServer) -> dict[str, str]:
    """Digests of vLLM's tensors, by name, as vLLM computes them."""
    code, text = request("POST", f"{server.url}/weight_checker", json.dumps({"action": "checksum"}))
    assert code == 200, text
    return {name.rpartition(":")[2]: found for name, found in json.loads(text)["checksums"].items()}
