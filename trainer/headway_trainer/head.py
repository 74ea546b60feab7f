"""Applies to a chunk of logits what a causal model does after its output head (scaling, soft-capping).

Log-probabilities are computed in chunks of the logits, so these last operations must run on each chunk. This
module runs the model's own `forward` for them. It replaces the body and the head by functions that return
given values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from headway_trainer.imports import lean


def output_head(model: nn.Module) -> nn.Module:
    """The module that turns hidden states into logits."""
    head: nn.Module = without_adapter(model).get_output_embeddings()
    return head


def without_adapter(model: nn.Module) -> Any:
    """The Hugging Face model, without the adapter that may wrap it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def finish(model: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """A function from the head's logits, (1, T, V), to the model's logits.

    It is None if the body or head is not where Hugging Face's conventions put it. It is also None if the head
    has submodules, such as an adapter. The caller then calls such a head whole.
    """
    causal, head = without_adapter(model), output_head(model)
    names = [name for name, module in causal.named_children() if module is head]
    body = getattr(causal, "base_model_prefix", "")
    if len(names) != 1 or body not in dict(causal.named_children()) or next(head.children(), None):
        return None

    def run(raw_1TV: Tensor) -> Tensor:
        with lean():
            from transformers.modeling_outputs import MoeModelOutputWithPast

        given = MoeModelOutputWithPast(last_hidden_state=raw_1TV)
        shell = _Shell(causal, {body: lambda *_, **__: given, names[0]: _Through(head)})
        logits_1TV: Tensor = type(causal).forward(shell, use_cache=False).logits
        return logits_1TV

    return run


class _Shell:
    """Stands for a model in the model's own `forward`, with some of its modules replaced."""

    def __init__(self, model: nn.Module, replaced: dict[str, Callable[..., Any]]) -> None:
        self._model = model
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced[name] if name in self._replaced else getattr(self._model, name)


class _Through:
    """Replaces a head that has already run: its input is the logits."""

    def __init__(self, head: nn.Module) -> None:
        self._head = head

    def __call__(self, logits_1TV: Tensor) -> Tensor:
        return logits_1TV

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)
