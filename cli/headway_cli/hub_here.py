"""Rewords errors of a model download for a command on this machine: a job's error advises about pods."""

from __future__ import annotations

from typing import Final

from headway_api import base_model

OFFLINE: Final = (
    "let this machine reach the hub, or name a folder whose hub/ has the model from an earlier download, as "
    "in --cache ~/.cache/huggingface"
)
GATED: Final = "correct --base, or set HF_TOKEN in this shell to a token that may read it"
GATED_RUN: Final = "set HF_TOKEN in this shell to a token that may read it"


def explained(error: str, *, base_option: bool) -> str:
    """The message of an error of `base_model.fetch`, with advice for this machine.

    Args:
        error: the error's message.
        base_option: whether the command has --base, so that the advice may name it.
    """
    offline = f"{OFFLINE}, or write --base file:///FOLDER" if base_option else OFFLINE
    gated = GATED if base_option else GATED_RUN
    return error.replace(base_model.OFFLINE, offline).replace(base_model.GATED, gated)
