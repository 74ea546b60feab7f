"""Loads the model that a job begins with: the base model, or the weights in `spec.model.warmStart`.

Only step 0 needs the weights of `warmStart`. Once a job has a step, it never reads them again, so they may be
deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.exits import JobError, not_final
from headway_api.records import TensorDigests
from headway_api.store import Store
from headway_api.warm_start import FIELD, LocalWeights, fetch
from headway_api.weights_format import DIGESTS_FILE, MODEL_FILE
from headway_trainer import model as models
from headway_trainer.checkpoint.journal import latest_step
from headway_trainer.imports import lean
from headway_trainer.logs import log
from headway_trainer.model import ADAPTER
from headway_trainer.publish.codec import tensor_digests
from headway_trainer.publish.lora import WEIGHTS
from headway_trainer.ranks import Ranks

NAMED = 3
"""Maximum number of tensor names in a message."""


def load(config: JobConfig, store: Store, base: Path, cache: Path, ranks: Ranks) -> nn.Module:
    """Load the model to train, on the CPU; collective.

    Raises:
        JobError: an error of `model.load` or `warm_start.fetch`, or `WarmStartUnusable` if tensors do not
            fit.
    """
    spec = config.spec
    start = _start(config, store, base, cache, ranks) if spec.model.warm_start is not None else None
    if start is None:
        return models.load(base, spec.model, spec.seed)
    log("warm start", folder=str(start.folder), adapter=start.adapter)
    if not start.adapter:
        return models.load(start.folder, spec.model, spec.seed)
    model = models.load(base, spec.model, spec.seed)
    return merged(model, start.folder) if spec.model.effective_lora is None else adapted(model, start.folder)


def adapted(model: nn.Module, folder: Path) -> nn.Module:
    """`model`, with the tensors of the adapter in `folder` loaded into its own adapter.

    Raises:
        JobError: `WarmStartUnusable`: the two adapters have different tensors or shapes.
    """
    with lean():
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

    found = _tensors(folder)
    _require_shapes(
        found, get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    )
    set_peft_model_state_dict(model, found, adapter_name=ADAPTER)
    return model


def merged(model: nn.Module, folder: Path) -> nn.Module:
    """`model`, with the adapter in `folder` merged into its weights. All weights are trainable."""
    with lean():
        from peft import PeftModel, get_peft_model_state_dict

    found = _tensors(folder)
    try:
        wrapped: Any = PeftModel.from_pretrained(
            model, str(folder), adapter_name=ADAPTER, autocast_adapter_dtype=False
        )
    # PEFT passes on any exception of its readers (safetensors, JSON), and raises others for missing modules.
    except Exception as error:
        raise JobError(
            "WarmStartUnusable",
            f"the adapter cannot be put on the base model ({type(error).__name__}: {error}); start from an "
            "adapter that was trained on it",
            field=FIELD,
        ) from error
    own = get_peft_model_state_dict(wrapped, adapter_name=ADAPTER, save_embedding_layers=False)
    _require_shapes(found, own)
    whole: nn.Module = wrapped.merge_and_unload()
    return whole.requires_grad_(True)  # PEFT has frozen the base weights


def _start(config: JobConfig, store: Store, base: Path, cache: Path, ranks: Ranks) -> LocalWeights | None:
    """The weights to begin with; None for a job that already has a step. One rank of each node fetches
    them."""
    begun: bool = ranks.share(_has_begun(config, store) if ranks.first else False)
    if begun:
        return None
    fetched = None
    if ranks.local_rank == 0:
        with not_final():  # the preflight has checked that they exist and fit the job
            fetched = fetch(config.spec.model, base, store, cache)
            _require_digests(fetched.folder)
    return ranks.gather(fetched)[ranks.rank - ranks.local_rank]


def _require_digests(folder: Path) -> None:
    """Compare each tensor with its recorded digest. Weights rebuilt from a delta have no other check."""
    described, written = folder / DIGESTS_FILE, folder / MODEL_FILE
    if not (described.exists() and written.exists()):
        return
    try:
        same = tensor_digests(written) == TensorDigests.model_validate_json(described.read_bytes())
    except ValueError:
        same = False
    if not same:
        raise JobError(
            "WarmStartUnusable",
            f"{MODEL_FILE} does not have the tensors that {DIGESTS_FILE} beside it describes; copy both "
            "again, or start from the weights of another step",
            field=FIELD,
        )


def _has_begun(config: JobConfig, store: Store) -> bool:
    layout = Layout(config.spec.output.uri, config.namespace, config.name, config.uid)
    return latest_step(store, layout) is not None


def _tensors(folder: Path) -> dict[str, Tensor]:
    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise JobError(
            "WarmStartUnusable",
            f"{WEIGHTS} cannot be read ({error}); write the adapter again, as safetensors",
            field=FIELD,
        ) from error


def _require_shapes(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    different = sorted(
        name
        for name in found.keys() | wanted.keys()
        if name not in found or name not in wanted or found[name].shape != wanted[name].shape
    )
    if different:
        raise JobError(
            "WarmStartUnusable",
            f"{len(different)} tensors of the adapter do not fit the base model, such as "
            f"{', '.join(different[:NAMED])}; give spec.model.lora the rank and targets it was trained with",
            field=FIELD,
        )
