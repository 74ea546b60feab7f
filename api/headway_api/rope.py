"""Context length that a server uses for a model whose rotary embedding depends on length. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

LONG: Final = frozenset({"longrope", "su"})
"""Kinds of scaling that use one set of factors up to the length of pretraining, and another set beyond it.
"su" is an old name of longrope."""


def scalings(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotary embeddings in a model's config.json: one, or one for each kind of layer."""
    text = config.get("text_config") or config
    found = text.get("rope_parameters") or text.get("rope_scaling") or {}
    nested = [part for part in found.values() if isinstance(part, Mapping)]
    yield from nested or [found]


def kind(scaling: Mapping[str, Any]) -> str:
    """Name of a scaling: `longrope`, `dynamic`, `llama3`, ...; `default` for none."""
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def own_length(config: Mapping[str, Any], limit: int) -> int:
    """Tokens of context that a server uses if it gets no limit, as vLLM 0.32 decides.

    Longrope models are then served only up to the length of pretraining, so that the factors for short texts
    apply.

    Args:
        config: content of config.json.
        limit: its max_position_embeddings.
    """
    text = config.get("text_config") or config
    if any(kind(scaling) in LONG for scaling in scalings(config)):
        return int(text.get("original_max_position_embeddings") or limit)
    return limit
