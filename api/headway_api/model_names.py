"""Names under which a rollout server offers weights: server and coordinator must agree on them."""

from __future__ import annotations

import re
from typing import Final

from headway_api.records import PolicyVersion, WeightsManifest

BASE_MODEL: Final = "base"
"""The base model and, with full weights, every version of it."""
POLICY: Final = "policy"
"""Slot of the policy that a job trains. A slot holds weights independently of a server's other slots."""
VALIDATION: Final = "validation"
"""Slot of the weights that are validated while training goes on."""

_SLOT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_slot(name: str) -> bool:
    """Whether `name` may name a slot: a DNS label. It has no dot, so that two slots' models never share a
    name."""
    return _SLOT.fullmatch(name) is not None


def adapter_name(version: PolicyVersion, slot: str = POLICY) -> str:
    """One name a version and slot, so that neither a request nor a cached prefix can meet other weights than
    those it began with."""
    return f"{slot}-{version}"


def name_of(manifest: WeightsManifest, slot: str = POLICY) -> str:
    """Name to ask for these weights by."""
    return adapter_name(manifest.version, slot) if manifest.kind == "lora" else BASE_MODEL


def salt_of(version: PolicyVersion, slot: str = POLICY) -> str:
    """Salt of a request's cached prefix: nothing that was computed for another version, or for another slot
    with the same version, is ever found. vLLM takes none with `@`, `/` or a backslash."""
    return str(version) if slot == POLICY else adapter_name(version, slot)
