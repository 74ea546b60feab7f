"""Makes torch 2.11 accept the product's call of variable-length attention.

Python imports this module in every process that has the folder on its path. Torch 2.11 accepts grouped heads
without an option, and the pinned torch 2.13 requires `enable_gqa`. Both use the same kernel. The module does
not change a torch that has this argument.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Sequence
from types import ModuleType

VARLEN = "torch.nn.attention.varlen"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch's attention module, and changes it at its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != VARLEN:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        found = module.varlen_attn
        if "enable_gqa" in inspect.signature(found).parameters:
            return

        @functools.wraps(found)
        def without_gqa(*tensors: object, enable_gqa: bool = False, **options: object) -> object:
            return found(*tensors, **options)

        module.varlen_attn = without_gqa  # type: ignore[attr-defined]


sys.meta_path.insert(0, _Finder())
