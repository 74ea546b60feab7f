"""Names under which a rollout server offers weights. The server and the coordinator must agree on them."""

from __future__ import annotations

import re
from typing import Final

from headway_api.records import PolicyVersion, WeightsManifest

BASE_MODEL: Final = "base"
"""Name of the base model and, with full weights, of every trained version."""
POLICY: Final = "policy"
"""Slot of the policy that a job trains. A slot holds weights independently of a server's other slots."""
VALIDATION: Final = "validation"
"""Slot of the weights that are validated while training continues."""

_SLOT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_slot(name: str) -> bool:
    """Whether `name` is valid for a slot: a DNS label. It has no dot, so two slots' models never share a
    name."""
    return _SLOT.fullmatch(name) is not None


def adapter_name(version: PolicyVersion, slot: str = POLICY) -> str:
    """Name of an adapter, different for each version and slot. So a request ends with the weights that it
    began with, and a cached prefix is never used with other weights."""
    return f"{slot}-{version}"


def name_of(manifest: WeightsManifest, slot: str = POLICY) -> str:
    """Name under which a request selects the weights of `manifest`."""
    return adapter_name(manifest.version, slot) if manifest.kind == "lora" else BASE_MODEL


def salt_of(version: PolicyVersion, slot: str = POLICY) -> str:
    """Salt of a request's cached prefix. It prevents reuse of a prefix that was computed with another version
    or for another slot. vLLM accepts no salt with `@`, `/` or a backslash."""
    return str(version) if slot == POLICY else adapter_name(version, slot)
