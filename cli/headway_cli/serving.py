"""Chooses and fetches the weights of a run to serve, and makes vLLM's command line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from headway_api import names
from headway_api.base_model import fetch, read_config
from headway_api.bounds import OutOfBoundsError
from headway_api.exits import JobError
from headway_api.mistakes import mistakes
from headway_api.model_names import BASE_MODEL
from headway_api.records import FileDigest, StepReport, WeightsManifest
from headway_api.spec.model import ModelSpec
from headway_api.store import CorruptFileError, ObjectNotFoundError, below, digest, download_folder
from headway_api.stored import read
from headway_api.weights_format import EXPORT_FILE
from headway_cli import hub_here
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun, readable
from headway_cli.user_cache import user_cache

HOST: Final = "127.0.0.1"
FILES: Final = "file://"
ADAPTER_CONFIG: Final = "adapter_config.json"
CPU_ARGUMENTS: Final = (
    *("--kv-cache-memory-bytes", str(512 * 2**20), "--enforce-eager"),
    *("--distributed-executor-backend", "uni", "--no-enable-chunked-prefill"),
)
"""vLLM's arguments on a machine without a GPU. By default it would take 92 % of the memory for its
cache, and a prompt in several chunks with a seed would end it."""
CPU_ENVIRONMENT: Final = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}
"""vLLM's variables there. Without a compiler, a request for log-probabilities would fail."""
RANKS: Final = (1, 8, 16, 32, 64, 128, 256)
"""Ranks for which vLLM can reserve memory. An adapter of another rank takes the next larger of these."""
BEST, LATEST = "best", "latest"


@dataclass(frozen=True)
class Chosen:
    """Weights of one step, and the model that they belong to."""

    step: int
    weights: WeightsManifest
    uri: str
    """Folder that has the weights now."""
    model: ModelSpec

    @property
    def is_adapter(self) -> bool:
        """Whether the weights are a LoRA adapter for the base model, and not a whole model."""
        return self.weights.kind == "lora"


@dataclass(frozen=True)
class OnDisk:
    """Folders of this machine that vLLM loads."""

    weights: Path
    base: Path | None
    """Folder of the base model; None if the weights are a whole model."""
    rank: int | None = None
    """Rank of the adapter; None if the weights are a whole model."""


def chosen(run: StoredRun, which: str, base: str | None) -> Chosen:
    """The weights that a person chose.

    Args:
        run: the training job's run.
        which: `best`, `latest`, or a step.
        base: URI of the base model; None if the run names it.

    Raises:
        RunNotFoundError: the run has no such weights, or neither `base` nor the run names the base model.
    """
    if run.job.get("kind") == names.EVAL_KIND:
        raise RunNotFoundError(
            f"{run.layout.root} is of an RLEvalJob, which trains nothing: name the training job's run"
        )
    step = _step(run, which)
    where = run.layout.step_history(step)
    with readable(where):
        weights = read(run.store, where, StepReport).weights
        if not weights.whole and not _is_complete(run, step):
            raise RunNotFoundError(
                f"until the job has ended, step {step} is stored as a change of an earlier step: write "
                "another --checkpoint"
            )
    return Chosen(step, weights, run.layout.weights(step), _model(run, base))


def _is_complete(run: StoredRun, step: int) -> bool:
    """Whether a step's folder has a whole model beside the delta, written when the job ended."""
    try:
        return run.store.size(f"{run.layout.weights(step)}/{EXPORT_FILE}") >= 0
    except ObjectNotFoundError:
        return False


def _step(run: StoredRun, which: str) -> int:
    kept = run.weights()
    if not kept:
        raise RunNotFoundError(f"{run.layout.root} has no weights that can be served yet")
    if which == LATEST:
        return kept[-1]
    if which == BEST:
        if (best := run.best()) is None:
            raise RunNotFoundError(
                "no step was validated yet, so there is no best one: write --checkpoint latest"
            )
        return best
    if not which.isdecimal() or int(which) not in kept:
        there = ", ".join(map(str, kept))
        raise RunNotFoundError(
            f"--checkpoint {which}: write best, latest, or a step whose weights are kept: {there}"
        )
    return int(which)


def _model(run: StoredRun, base: str | None) -> ModelSpec:
    fields: dict[str, Any] = dict(run.spec.get("model") or {})
    if base is not None:
        fields = {key: value for key, value in fields.items() if key != "revision"} | {"base": base}
    if "base" not in fields:
        raise RunNotFoundError(
            "this run does not name its base model: write --base URI, as in spec.model.base"
        )
    try:
        return ModelSpec.model_validate(fields)
    except ValidationError as error:
        raise RunNotFoundError(f"spec.model: {'; '.join(mistakes(error, ModelSpec))}") from error


def default_cache(environ: Mapping[str, str]) -> Path:
    """Folder that keeps downloaded models from buckets and the hub for later calls."""
    return user_cache(environ, "serve")


def _place(uri: str, cache: Path) -> Path:
    if uri.startswith(FILES):
        return Path(uri.removeprefix(FILES))
    return cache / hashlib.sha256(uri.encode()).hexdigest()[:16]


def fetched(run: StoredRun, of: Chosen, cache: Path) -> OnDisk:
    """Fetch the weights and the base model. Each file of the weights is compared with the learner's digest.

    Correct files that are already in `cache` are not downloaded again.

    Raises:
        RunNotFoundError: a file differs from its digest, or cannot be fetched.
    """
    weights = _place(of.uri, cache / "weights")
    # A whole model that was written at the job's end beside a delta has no digests.
    files = of.weights.files if of.weights.whole else None
    with readable(of.uri):
        if files is None or wrong_files(weights, files):
            if of.uri.startswith(FILES):
                _require(weights, files)
            else:
                download_folder(run.store, of.uri, weights, files)
        if not of.is_adapter:
            return OnDisk(weights, None)
        rank = _rank(weights)
        if of.model.base.startswith(FILES):
            base = Path(of.model.base.removeprefix(FILES))
            if not base.is_dir():
                raise RunNotFoundError(f"the base model is no longer at {of.model.base}: write --base URI")
            return OnDisk(weights, base, rank)
        return OnDisk(weights, _base(of.model, run, cache), rank)


def _base(model: ModelSpec, run: StoredRun, cache: Path) -> Path:
    try:
        return fetch(model, run.store, cache)
    except JobError as error:
        raise RunNotFoundError(hub_here.explained(error.termination.sentence, base_option=True)) from error


def wrong_files(folder: Path, files: Sequence[FileDigest]) -> list[str]:
    """Names of files in `folder` that are missing or differ from their digest."""
    return [
        each.name
        for each in files
        if not below(folder, each.name).is_file() or digest(folder / each.name).sha256 != each.sha256
    ]


def _require(folder: Path, files: Sequence[FileDigest] | None) -> None:
    """Raise CorruptFileError if a file in `folder` is missing or differs from its digest."""
    if wrong := wrong_files(folder, files or ()):
        raise CorruptFileError(
            f"{folder / wrong[0]} is not what the learner wrote: restore it, or serve another step"
        )


def _rank(folder: Path) -> int:
    try:
        return int(read_config(folder / ADAPTER_CONFIG)["r"])
    except (OSError, OutOfBoundsError, KeyError, TypeError, ValueError) as error:
        raise RunNotFoundError(
            f"{folder / ADAPTER_CONFIG} does not say the adapter's rank: {error!r}"
        ) from error


def command(
    launcher: Sequence[str], name: str, of: Chosen, there: OnDisk, port: int, more: Sequence[str] = ()
) -> tuple[str, ...]:
    """The command line of vLLM.

    Args:
        launcher: the words that start its server, up to the model.
        name: model name under which clients use the trained weights.
        of: the weights.
        there: the folders to load.
        port: port on the loopback address.
        more: further arguments of the user, which come last and override others.
    """
    model = of.model
    arguments = [*launcher, str(there.base or there.weights)]
    arguments += ["--served-model-name", BASE_MODEL if there.base else name]
    arguments += ["--host", HOST, "--port", str(port), "--dtype", model.dtype]
    if model.context_length is not None:
        arguments += ["--max-model-len", str(model.context_length)]
    if there.base is not None:
        rank = there.rank or 1
        place = next((offered for offered in RANKS if offered >= rank), rank)
        arguments += [
            "--enable-lora",
            "--max-lora-rank",
            str(place),
            "--lora-modules",
            f"{name}={there.weights}",
        ]
    return (*arguments, *more)


def environment(parent: Mapping[str, str], *, on_cpu: bool) -> dict[str, str]:
    """Environment variables of vLLM: it loads models only from this machine, and sends no usage reports."""
    cpu = CPU_ENVIRONMENT if on_cpu else {}
    return {**cpu, **parent, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
