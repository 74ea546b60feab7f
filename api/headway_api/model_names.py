"""Names under which a rollout server offers weights: server and coordinator must agree on them."""

from __future__ import annotations

from typing import Final

from headway_api.records import PolicyVersion, WeightsManifest

BASE_MODEL: Final = "base"
"""The base model and, with full weights, every version of it."""


def adapter_name(version: PolicyVersion) -> str:
    """One name a version, so that neither a request nor a cached prefix can meet other weights than those
    it began with."""
    return f"policy-{version}"


def name_of(manifest: WeightsManifest) -> str:
    """Name to ask for these weights by."""
    return adapter_name(manifest.version) if manifest.kind == "lora" else BASE_MODEL
