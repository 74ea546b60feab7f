"""Checks downloaded files before the engine loads them.

The engine would crash on a wrong shape, overlook a missing tensor, and answer 200 to an empty list of files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway_api.records import Canary, FileDigest, WeightsManifest
from headway_api.weights_format import (
    DELTA_FILE,
    DIGESTS_FILE,
    MODEL_FILE,
    InvalidSafetensorsError,
    read_spans,
)

FLOATS: Final = frozenset({"F32", "F16", "BF16"})
TIED: Final = "lm_head.weight"
"""Name of the output head. With tied embeddings the head is the embedding, so a checkpoint may omit it."""


class UnusableManifestError(Exception):
    """These files are not the weights of this job's model; the engine was not touched."""


@dataclass(frozen=True)
class TensorHeader:
    """The type and shape of one tensor in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Names, dtypes and shapes in a safetensors file, checked against the size of the file.

    Raises:
        UnusableManifestError: `path` is not a complete safetensors file.
    """
    try:
        spans = read_spans(path)
    except InvalidSafetensorsError as error:
        raise UnusableManifestError(str(error)) from error
    return {name: TensorHeader(span.dtype, span.shape) for name, span in spans.items()}


def read_headers(folder: Path, names: Iterable[str] | None = None) -> dict[str, TensorHeader]:
    """The headers of all tensors in a folder's safetensors files, or in the files `names`, by tensor name.

    Raises:
        UnusableManifestError: a file is not a complete safetensors file, or two files have the same tensor.
    """
    paths = sorted(folder.glob("*.safetensors")) if names is None else [folder / name for name in names]
    found: dict[str, TensorHeader] = {}
    for path in paths:
        header = read_header(path)
        twice = found.keys() & header.keys()
        if twice:
            raise UnusableManifestError(f"{path.name} repeats {sorted(twice)[0]}")
        found |= header
    return found


def check_manifest(manifest: WeightsManifest, kinds: Collection[str]) -> None:
    """Check a manifest's kind, canary and file names before anything is downloaded.

    Raises:
        UnusableManifestError: the kind is not in `kinds`, the canary is malformed, a needed file is not
            named,
            or a file name would leave its folder.
    """
    if manifest.kind not in kinds:
        raise UnusableManifestError(
            f"the manifest is of {manifest.kind} weights; this server takes {' and '.join(kinds)}"
        )
    if manifest.canary is not None:
        _check_canary(manifest.canary)
    if manifest.kind != "base":  # a base model is already loaded, so no file is read
        _check_files(manifest)


def _check_files(manifest: WeightsManifest) -> None:
    whole, *deltas = (*manifest.chain, manifest.link)
    for link in (whole, *deltas):
        outside = [file.name for file in link.files if Path(file.name).name != file.name]
        if outside:
            raise UnusableManifestError(f"file name {outside[0]!r} is not a plain name")
    if manifest.kind != "direct" and not tensor_files(whole.files):
        raise UnusableManifestError(f"the manifest names no safetensors file of version {whole.version}")
    if deltas and tensor_files(whole.files) != [MODEL_FILE]:
        raise UnusableManifestError(f"the deltas start at {whole.version}, which is not one {MODEL_FILE}")
    for link in deltas:
        if {DELTA_FILE, DIGESTS_FILE} - {file.name for file in link.files}:
            raise UnusableManifestError(f"version {link.version} lacks {DELTA_FILE} or {DIGESTS_FILE}")


def _check_canary(canary: Canary) -> None:
    if len(canary.tokens) < 2 or len(canary.logprobs) != len(canary.tokens) - 1:
        raise UnusableManifestError(
            "the canary needs at least two tokens and one log-probability fewer than tokens"
        )


def tensor_files(files: Iterable[FileDigest]) -> list[str]:
    """Names of the files that hold tensors."""
    return sorted(file.name for file in files if file.name.endswith(".safetensors"))


def check_full(expected: Mapping[str, TensorHeader], found: Mapping[str, TensorHeader]) -> None:
    """Check that a full checkpoint has the base model's tensors, each in its shape, in floating point.

    Raises:
        UnusableManifestError: a tensor is missing, unknown, or of a wrong shape or type.
    """
    missing = sorted(expected.keys() - found.keys() - {TIED})
    unknown = sorted(found.keys() - expected.keys() - {TIED})
    if missing or (TIED in expected and TIED not in found):
        raise UnusableManifestError(
            f"the checkpoint lacks {(missing or [TIED])[0]} ({len(missing) or 1} tensors missing)"
        )
    if unknown:
        raise UnusableManifestError(f"the model has no tensor {unknown[0]} ({len(unknown)} tensors too many)")
    for name, header in found.items():
        if name in expected and header.shape != expected[name].shape:
            raise UnusableManifestError(
                f"{name} has shape {list(header.shape)}, the model's is {list(expected[name].shape)}"
            )
        _check_float(name, header)


def check_lora(config: Mapping[str, object], found: Mapping[str, TensorHeader], max_rank: int) -> None:
    """Check that an adapter consists of pairs of LoRA matrices of its rank, and fits the engine.

    Args:
        config: content of adapter_config.json.
        found: the adapter's tensors, by name.
        max_rank: largest rank for which the engine has room.

    Raises:
        UnusableManifestError: the adapter breaks one of these rules; the message says which.
    """
    rank = config.get("r")
    if config.get("peft_type") != "LORA" or not isinstance(rank, int):
        raise UnusableManifestError("adapter_config.json does not describe a LoRA adapter")
    if rank > max_rank:
        raise UnusableManifestError(f"the adapter's rank is {rank}; this server has room for rank {max_rank}")
    if not found:
        raise UnusableManifestError("the adapter has no tensor")
    for name, header in found.items():
        _check_float(name, header)
        stem, part, tail = name.rpartition(".lora_A.") if ".lora_A." in name else name.rpartition(".lora_B.")
        if not part:
            raise UnusableManifestError(f"{name} is not a LoRA matrix")
        other = f"{stem}.lora_{'B' if part == '.lora_A.' else 'A'}.{tail}"
        if other not in found:
            raise UnusableManifestError(f"{name} lacks its {other}")
        inner = header.shape[0] if part == ".lora_A." else header.shape[-1]
        if len(header.shape) != 2 or inner != rank:
            raise UnusableManifestError(f"{name} has shape {list(header.shape)}; the rank is {rank}")


def _check_float(name: str, header: TensorHeader) -> None:
    if header.dtype not in FLOATS:
        raise UnusableManifestError(
            f"{name} is {header.dtype}; weights are one of {', '.join(sorted(FLOATS))}"
        )
