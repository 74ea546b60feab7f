"""Which modules get an adapter. Their names come from a checkpoint, and are matched as PEFT matches them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

FIELD: Final = "spec.model.lora.targets"
SUFFIX: Final = ".weight"
HEADS: Final = ("lm_head", "embed_out")
"""Output heads. vLLM accepts an adapter there for some models (Llama, Qwen3) and not for others (Qwen2)."""
EMBEDDINGS: Final = ("wte", "wpe")
"""Embeddings besides those that have "embed" in their name."""
EXPERTS: Final = "experts"
"""Part of the path of the modules of experts. The learner holds the experts of a layer as one tensor."""
OF_EXPERTS: Final = (
    "gate_proj",
    "up_proj",
    "down_proj",
    "w1",
    "w2",
    "w3",
    "gate",
    "router",
    "shared_expert_gate",
)
"""Names of the modules of experts and of the router. Linear modules may have the same names (shared experts,
dense layers of a mixture). PEFT still applies such a name to the experts too, and no server loads the
resulting adapter."""
OTHER_TOWERS: Final = ("visual", "vision", "audio", "multi_modal", "mtp")
"""Prefixes of parts of a checkpoint that are not the language model, or are not trained."""


def adaptable(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Paths of the linear modules that may get an adapter, from the shapes of a checkpoint's tensors."""
    paths = [name.removesuffix(SUFFIX) for name in shapes if name.endswith(SUFFIX) and len(shapes[name]) == 2]
    return chosen(paths, shapes)


def chosen(linear: Iterable[str], tensors: Iterable[str]) -> list[str]:
    """The paths in `linear` that may get an adapter; `tensors` are the names of all tensors."""
    routed = any(EXPERTS in name.split(".") for name in tensors)
    return sorted(path for path in linear if _is_adaptable(path.split("."), routed))


def _is_adaptable(parts: Sequence[str], routed: bool) -> bool:
    last = parts[-1]
    if last in HEADS or last in EMBEDDINGS or "embed" in last or (routed and last in OF_EXPERTS):
        return False
    return EXPERTS not in parts and not any(part.startswith(OTHER_TOWERS) for part in parts)


def matched(targets: Collection[str] | str, modules: Iterable[str]) -> set[str]:
    """The `modules` that `targets` name, by the whole path or its end. If `targets` is a string, it is a
    regular expression for a whole path."""
    if isinstance(targets, str):
        try:
            return {module for module in modules if re.fullmatch(targets, module)}
        except re.error:
            return set()
    return {module for module in modules if any(_names(target, module) for target in targets)}


def _names(target: str, module: str) -> bool:
    # A checkpoint may omit the beginning of a model's paths.
    return f".{module}".endswith(f".{target}") or ("." in module and target.endswith(f".{module}"))


def unmatched(targets: Iterable[str], modules: Collection[str]) -> list[str]:
    """The `targets` that name none of `modules`."""
    return [target for target in targets if not matched([target], modules)]


def ends(modules: Iterable[str]) -> str:
    """The last parts of paths, each once, for a message."""
    return ", ".join(sorted({module.rpartition(".")[2] for module in modules})) or "none"
