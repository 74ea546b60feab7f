"""A model in bfloat16 that takes steps too small for a canary to see, and what publishes it."""

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
"""Of the canary: what bfloat16 needs, and far more than a step moves."""


class MovingModel:
    """A model, and the store that it is published to."""

    def __init__(self, folder: Path, base: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.store = folder / "store"
        self.model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()

    def step(self) -> None:
        """One unit in the last place of a few elements of every tensor."""
        import torch

        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.view(torch.int16).flatten()[::100] += 1

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all there are."""
        return {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}

    def publish(self, by: WeightPublisher, step: int) -> WeightsManifest:
        """What the learner would write for the model as it is."""
        uri = f"file://{self.store}/{step:06d}"
        published = by.publish(FileStore(), uri, version(step), self.tensors())
        canary = Canary(tokens=CANARY_TOKENS, logprobs=score(self.model, CANARY_TOKENS), tolerance=TOLERANCE)
        return published.manifest(uri, version(step), canary)


def engine_digests(server: RolloutServer) -> dict[str, str]:
    """What vLLM says that its own tensors are."""
    code, text = request("POST", f"{server.url}/weight_checker", json.dumps({"action": "checksum"}))
    assert code == 200, text
    return {name.rpartition(":")[2]: found for name, found in json.loads(text)["checksums"].items()}
