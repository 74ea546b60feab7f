"""Reads what a run has stored, in a local job's folder or at a URI. Explains errors of the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from headway_analysis.measures.episodes import Evaluation, ranked
from headway_api import names
from headway_api.artifacts import Layout, RunLayout, by_number, pointed
from headway_api.bounds import OutOfBoundsError
from headway_api.exits import JobError
from headway_api.job_folder import JobFolder
from headway_api.mistake_words import message
from headway_api.records import GroupRecord, Purpose
from headway_api.run_files import RunFiles
from headway_api.spec.lifecycle import OutputSpec
from headway_api.store import CorruptFileError, ObjectNotFoundError, Store, StoreDeniedError, open_store
from headway_api.store_faults import unavailable_here
from headway_api.store_refused import SHELL, refusal
from headway_api.weights_format import MODEL_FILE
from headway_cli.runs import RunNotFoundError
from headway_cli.where import LocalJob, Stored

MARKS = ("trajectories", "usage", "steps", "checkpoints", "logs", "coordinators", "prices")
"""Folders by which a run is recognized. A run that has written anything has at least one of them."""

WHOLE = ("/adapter_model.safetensors", f"/{MODEL_FILE}")
"""Names of weight files that can be served alone: of an adapter, and of a whole model."""


@dataclass(frozen=True)
class StoredRun:
    """The stored files of one run."""

    store: Store
    layout: Layout
    job: Mapping[str, Any] = field(default_factory=dict)
    """`kind`, `namespace`, `name`, `uid` and `spec` of the job, as its processes read them; for an evaluation
    also `candidates`. Empty if the store does not have them."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """Status of a local job; empty for any other job."""

    @property
    def files(self) -> RunFiles:
        """Access to the run's files as typed records."""
        return RunFiles(self.store, self.layout)

    @property
    def spec(self) -> Mapping[str, Any]:
        """The job's spec; empty if the store does not have it."""
        found: Mapping[str, Any] = self.job.get("spec", {})
        return found

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.job.get("name") or self.layout.root.rpartition("/")[0].rpartition("/")[2])

    @property
    def base(self) -> str | None:
        """`spec.model.base` of a training job; None for an evaluation, or if the store has no spec."""
        found = (self.spec.get("model") or {}).get("base")
        return found if isinstance(found, str) else None

    @property
    def evaluates(self) -> bool:
        """Whether the run belongs to an RLEvalJob."""
        return self.job.get("kind") == names.EVAL_KIND

    @property
    def purpose(self) -> Purpose:
        """The purpose of most of the run's episodes: training, or evaluation."""
        return Purpose.EVALUATION if self.evaluates else Purpose.TRAIN

    def groups(self, purpose: Purpose, *, lost: bool = False) -> Iterator[GroupRecord]:
        """The run's groups of one purpose, in the order of their names.

        Args:
            purpose: the purpose of the groups.
            lost: whether to add groups without any scored episode, at the end. They are stored in a separate
                folder.

        Raises:
            RunNotFoundError: a group cannot be read.
        """
        with readable(self.layout.root):
            yield from self.files.groups(self.files.addresses(purpose))
            if lost:
                apart = self.files.groups(self.files.unanswered())
                yield from (each for each in apart if each.purpose is purpose)

    def latest(self) -> int | None:
        """Step of the newest whole checkpoint; None if there is none."""
        with readable(self.layout.latest):
            try:
                return pointed(self.store.get(self.layout.latest))
            except ObjectNotFoundError:
                return None
            except OutOfBoundsError as error:
                raise RunNotFoundError(f"{self.layout.latest} cannot be read: {error}") from error

    def weights(self) -> list[int]:
        """Steps whose weights are still stored and can be served alone, in order. Deltas are left out."""
        with readable(self.layout.all_weights):
            found = by_number(self.store.list(self.layout.all_weights), self.layout.all_weights)
        return sorted(step for step, uris in found.items() if any(uri.endswith(WHOLE) for uri in uris))

    def best(self) -> int | None:
        """The step with the best validation, of those with weights; None before any validation.

        Validations are ranked in the same way as for the job's status.
        """
        kept, files = self.weights(), self.files
        with readable(self.layout.validations):
            validations = files.validations()
        order = ranked(
            Evaluation(each.step, each.reward, each.external_score, each.success, each.episodes, each.failed)
            for each in validations
        )
        return next((each.step for each in order if each.step in kept), None)


def opened(place: LocalJob | Stored, endpoint_url: str | None = None) -> StoredRun:
    """The stored run at a place.

    Args:
        place: a local job, or the URI of a stored run.
        endpoint_url: address of the S3-compatible store; None for the default.

    Raises:
        RunNotFoundError: there is no run at the place, or the store cannot be used.
    """
    if isinstance(place, LocalJob):
        return _of_local_job(place)
    uri = place.uri
    run = StoredRun(store_at({"uri": uri, "endpointUrl": endpoint_url}), RunLayout.of(uri))
    with readable(uri):
        job = run.files.document(run.layout.job)
        if job is None and not _has_written(run, uri):
            raise RunNotFoundError(
                f"{uri} has no run: name the folder of a local job (.headway/NAME), or "
                "status.artifacts.uri of a job on a cluster"
            )
    return StoredRun(run.store, run.layout, job or {})


def _has_written(run: StoredRun, uri: str) -> bool:
    found = {each.removeprefix(uri).lstrip("/").partition("/")[0] for each in run.store.list(uri)}
    return not found.isdisjoint(MARKS)


def _of_local_job(place: LocalJob) -> StoredRun:
    raw = JobFolder(place.folder).whole()
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    identity = [str(metadata.get(key) or "") for key in ("namespace", "name", "uid")]
    # Use the folder's present path, because a person may have moved the folder.
    layout = RunLayout.of(Layout(f"file://{place.folder / 'artifacts'}", *identity).root)
    if not place.folder.joinpath("artifacts", *identity).is_dir():
        raise RunNotFoundError(f"{place.folder}: the job has written nothing yet")
    store = store_at({**(spec.get("output") or {}), "uri": layout.root})
    job = {"kind": raw.get("kind", names.TRAINING_KIND), "spec": spec}
    job |= dict(zip(("namespace", "name", "uid"), identity, strict=True))
    if "candidates" in raw["status"]:
        job["candidates"] = raw["status"]["candidates"]
    return StoredRun(store, layout, job, raw["status"])


def store_at(output: Mapping[str, Any]) -> Store:
    """Open the store that the block `spec.output` of a job names.

    Raises:
        RunNotFoundError: the store cannot be used.
    """
    where = output.get("uri")
    try:
        return open_store(OutputSpec.model_validate(output), quick=True)
    except ModuleNotFoundError as error:
        raise RunNotFoundError(
            f"{where}: reading buckets needs boto3: pip install headway[coordinator]"
        ) from error
    except JobError as error:
        raise RunNotFoundError(f"{where}: {unavailable_here(str(where), error)}") from error
    except ValidationError as error:
        raise RunNotFoundError(f"{where}: {message(error.errors()[0])}") from error


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn errors of a store into RunNotFoundError with an explanation.

    Args:
        where: URI that the block reads, for the message.

    Raises:
        RunNotFoundError: the store refused or failed.
    """
    try:
        yield
    except ObjectNotFoundError as error:
        raise RunNotFoundError(f"{where}: there is no object {error.args[0]}") from error
    except JobError as error:
        raise RunNotFoundError(error.termination.sentence) from error
    except StoreDeniedError as error:
        raise RunNotFoundError(f"{error}; {refusal(error, SHELL).fix}") from error
    except CorruptFileError as error:
        raise RunNotFoundError(str(error)) from error
    except OSError as error:
        raise RunNotFoundError(f"{error.filename or where}: {error.strerror or error}") from error
    except _of_clients() as error:
        raise RunNotFoundError(f"{where}: the store does not answer: {error}") from error


def _of_clients() -> tuple[type[Exception], ...]:
    """The exceptions of boto3; none if boto3 is not installed, because then nothing can have raised one."""
    try:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ModuleNotFoundError:
        return ()
    return BotoCoreError, ClientError, Boto3Error
