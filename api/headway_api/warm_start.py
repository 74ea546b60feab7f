"""Fetches the weights of `spec.model.warmStart`, and checks that the job can start from them.

The preflight checks only the configuration, before an accelerator is requested; the learner also fetches the
weights. If a job wrote the weights, the report of its step is also in its folder and has their digests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from headway_api import base_model, bounds, lora_targets
from headway_api.base_model import HUB
from headway_api.bounds import OutOfBoundsError, json_within
from headway_api.exits import JobError
from headway_api.records import FileDigest
from headway_api.store import ObjectNotFoundError, Store, digest

if TYPE_CHECKING:
    from headway_api.spec.model import Lora, ModelSpec

FIELD: Final = "spec.model.warmStart"
ADAPTER_CONFIG: Final = "adapter_config.json"
MODEL_CONFIG: Final = "config.json"
OF_A_JOB: Final = re.compile(r"(?P<root>.+)/weights/(?P<step>[0-9]{6,})")
"""Address of a step's weights, as in `artifacts.Layout`. `steps/<step>.json` below ROOT describes them."""
SHAPE: Final = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
"""Keys that have equal values in the configurations of two models of one architecture and size."""
VARIANTS: Final = (
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "target_parameters",
)
"""Settings of PEFT with which an adapter of the same rank and alpha is a different one."""


@dataclass(frozen=True)
class LocalWeights:
    """Weights to start from, on this machine."""

    folder: Path
    adapter: bool
    """Whether the weights are a LoRA adapter for the base model, instead of a whole model."""

    @property
    def sentence(self) -> str:
        """What the preflight reports about the weights."""
        return "a LoRA adapter of the base model" if self.adapter else "all weights of a model like the base"


def fetch(
    model: ModelSpec,
    base: Path,
    store: Store,
    cache: Path,
    *,
    weights: bool = True,
    modules: Sequence[str] | None = None,
) -> LocalWeights:
    """The weights that `spec.model.warmStart.uri` names; `base` is the folder of the base model.

    Without `weights` the folder has only the configuration. `modules` are those of the base model that may
    get an adapter. If they are given, the adapter's modules are checked against the job.

    Raises:
        JobError: `ModelUnavailable` if nothing can be read at the URI. `WarmStartUnusable` if the weights do
            not fit the job, or the files are not those that a job wrote.
    """
    assert model.warm_start is not None
    uri = (model.warm_start.uri or "").rstrip("/")
    start_model = model.model_copy(update={"base": uri, "revision": None})
    folder = base_model.fetch(start_model, store, cache, weights=weights, field=FIELD)
    start = judge(folder, model, base, modules)
    if weights:
        _require_digests(_digests(store, uri), folder, uri)
    return start


def judge(folder: Path, model: ModelSpec, base: Path, modules: Sequence[str] | None = None) -> LocalWeights:
    """Check by its configuration that the job can start from the weights in `folder`, and return them.

    Raises:
        JobError: `WarmStartUnusable`.
    """
    if (folder / ADAPTER_CONFIG).exists():
        _judge_adapter(_read(folder / ADAPTER_CONFIG), model, modules)
        return LocalWeights(folder, adapter=True)
    if not (folder / MODEL_CONFIG).exists():
        raise _unusable(
            f"there is no {ADAPTER_CONFIG} and no {MODEL_CONFIG}; name the folder of a LoRA adapter or whole "
            "model, such as status.checkpoints.adapter.uri of its job"
        )
    if model.effective_lora is not None:
        raise _unusable(
            "the folder has a whole model, but this job trains an adapter; name the folder in "
            "spec.model.base instead, or set spec.model.full: {}"
        )
    _judge_model(_read(folder / MODEL_CONFIG), _read(base / MODEL_CONFIG))
    return LocalWeights(folder, adapter=False)


def _judge_adapter(found: dict[str, Any], model: ModelSpec, modules: Sequence[str] | None) -> None:
    of, base = str(found.get("base_model_name_or_path")), model.base.removeprefix(HUB)
    if of.rstrip("/") != base.rstrip("/"):
        raise _unusable(
            f"the adapter is of base model {of}, not {base}; start from one of this base model. "
            f"If both are the same model, correct base_model_name_or_path in its {ADAPTER_CONFIG}"
        )
    if found.get("peft_type") != "LORA" or any(found.get(setting) for setting in VARIANTS):
        raise _unusable(
            "the adapter is not a plain LoRA adapter, and no other kind can be trained; merge it into its "
            "base model"
        )
    if (lora := model.effective_lora) is not None:
        _judge_size(found, lora)
        if modules is not None:
            _judge_targets(found.get("target_modules") or [], lora, modules)


def _judge_size(found: dict[str, Any], lora: Lora) -> None:
    rank, alpha, scaled = found.get("r"), found.get("lora_alpha"), bool(found.get("use_rslora"))
    if scaled != lora.rs_lora:
        raise _unusable(
            f"the adapter was trained {'with' if scaled else 'without'} rsLoRA; set spec.model.lora.rsLora: "
            f"{str(scaled).lower()}, or merge it into its base model"
        )
    if (rank, alpha) != (lora.rank, lora.alpha):
        raise _unusable(
            f"the adapter has rank {rank} and alpha {alpha}, not {lora.rank} and {lora.alpha}; set the same "
            "in spec.model.lora, or merge it into its base model"
        )


def _judge_targets(found: list[str] | str, lora: Lora, modules: Sequence[str]) -> None:
    asked = lora.targets or modules
    if lora_targets.matched(found, modules) == lora_targets.matched(asked, modules):
        return
    adapter_modules = found if isinstance(found, str) else lora_targets.ends(found)
    job_modules = lora_targets.ends(asked)
    if adapter_modules == job_modules:  # only their layers differ: show whole paths
        adapter_modules, job_modules = (", ".join(sorted(names)) for names in (found, asked))
    raise _unusable(
        f"the adapter targets modules {adapter_modules}, the job {job_modules}; set spec.model.lora.targets "
        "to the adapter's, start from another adapter, or merge this one into its base model"
    )


def _judge_model(found: dict[str, Any], base: dict[str, Any]) -> None:
    start_config, base_config = (config.get("text_config") or config for config in (found, base))
    for name in SHAPE:
        start_value, base_value = start_config.get(name), base_config.get(name)
        if start_value != base_value:
            raise _unusable(
                f"its model has {name} {start_value}, and the base model {base_value}; start from "
                "weights that were trained from this base model"
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        return base_model.read_config(path)
    except (OSError, ValueError) as error:
        raise _unusable(f"{path.name} cannot be read ({error}); write the folder again") from error


def _digests(store: Store, uri: str) -> list[FileDigest]:
    """Digests of the files at `uri`, if a job has written them there; otherwise none."""
    if (of_a_job := OF_A_JOB.fullmatch(uri)) is None:
        return []
    where = f"{of_a_job['root']}/steps/{of_a_job['step']}.json"
    try:
        # Another version of Headway may have written the report, with other fields.
        report = json_within(store.get(where), bounds.REPORT)
        weights = report["weights"]
        described = str(weights["uri"]).rstrip("/") == uri
        return [FileDigest.model_validate(file) for file in weights["files"]] if described else []
    except ObjectNotFoundError:
        return []
    except (OutOfBoundsError, ValidationError, KeyError, TypeError) as error:
        raise _unusable(f"{where} is not the report of a step; restore what the job wrote there") from error


def _require_digests(expected: list[FileDigest], folder: Path, uri: str) -> None:
    for file in expected:
        path = folder / file.name
        if not path.exists() or digest(path) != file:
            raise _unusable(
                f"{uri}/{file.name} is not the file that the job wrote; copy its weights again, or start "
                "from the weights of another step"
            )


def _unusable(message: str) -> JobError:
    return JobError("WarmStartUnusable", message, field=FIELD)
