"""Reads a job as a person wrote it, and changes it so that it can run on this machine.

Pure, except for `read` and `lend`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from headway_api import names
from headway_api.base import SpecModel
from headway_api.bounds import shortened
from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_api.mistakes import mistakes
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.training import RLTrainingJob
from headway_cli import kubectl_yaml, progress
from headway_cli.local.workloads import moment

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
KINDS: Final[Mapping[str, type[RLTrainingJob] | type[RLEvalJob]]] = {
    names.TRAINING_KIND: RLTrainingJob,
    names.EVAL_KIND: RLEvalJob,
}


class ManifestError(Exception):
    """The file has no job that can run; the message names the field and the fix."""


def read(path: Path) -> Json:
    """The only job in a file of YAML documents.

    Raises:
        ManifestError: the file cannot be read, or has no job or several jobs.
    """
    try:
        documents = kubectl_yaml.documents(path.read_text())
    except FileNotFoundError as error:
        raise ManifestError(
            f"{path} does not exist: name the file of a job, or write one with `headway init`"
        ) from error
    except IsADirectoryError as error:
        raise ManifestError(f"{path} is a folder: name the job's file in it: {path}/job.yaml") from error
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise ManifestError(f"{path} is nested too deeply: write fewer levels") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read as YAML: {_fault(error)}; correct it there") from error
    objects = [each for each in documents if isinstance(each, dict)]
    jobs = [each for each in objects if each.get("kind") in KINDS]
    if not jobs:
        kinds = ", ".join(dict.fromkeys(shortened(str(each.get("kind")), 40) for each in objects))
        why = f"has no job, only kind {kinds}" if kinds else "has no job"
        raise ManifestError(f"{path} {why}: write kind: {' or '.join(KINDS)}")
    if len(jobs) > 1:
        raise ManifestError(f"{path} has {len(jobs)} jobs: keep one, and write each other into its own file")
    job: Json = jobs[0]
    name = job["metadata"].get("name") if isinstance(job.get("metadata"), dict) else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ManifestError(f"{path}: metadata.name: write a name of a-z, 0-9 and -, such as my-job")
    for part in ("spec", "metadata.labels"):
        value = job["metadata"].get("labels") if "." in part else job.get(part)
        if not isinstance(value, dict | None):
            raise ManifestError(f"{path}: {part}: write fields below it")
    return job


def _fault(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """A line that says where and why a file is not YAML."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return shortened(" ".join(str(error).split()), 200)


def changed(job: Json, settings: Iterable[str]) -> Json:
    """A copy of the job with fields set.

    Args:
        job: the job.
        settings: `PATH=VALUE`, such as `spec.schedule.maxSteps=3`; the value is YAML.

    Raises:
        ManifestError: a setting has another form.
    """
    made: Json = json.loads(json.dumps(job, default=str))
    for setting in settings:
        path, equals, text = setting.partition("=")
        *parents, last = path.split(".")
        if not equals or not last or parents[:1] != ["spec"]:
            raise ManifestError(f"--set {setting}: write spec.FIELD=VALUE, such as spec.schedule.maxSteps=3")
        at = made
        for key in parents:
            at = at.setdefault(key, {})
            if not isinstance(at, dict):
                raise ManifestError(f"--set {setting}: {key} has a value, not fields")
        try:
            at[last] = kubectl_yaml.value(text)
        except (yaml.YAMLError, RecursionError) as error:
            raise ManifestError(f"--set {setting}: the value cannot be read as YAML") from error
    return made


def local(job: Json, folder: Path, now: datetime) -> tuple[Json, tuple[str, ...]]:
    """The job as an API server would store it, with its artifacts in `folder`.

    Returns:
        The job, and messages about fields that were left out because they need a cluster.

    Raises:
        ManifestError: the job's spec is wrong, or needs a cluster.
    """
    spec, notes = dict(job.get("spec") or {}), []
    store = spec["output"] if isinstance(spec.get("output"), dict) else {}
    # Keep the address of the store that has the rows and the model.
    kept = {key: store[key] for key in ("endpointUrl", "region") if key in store}
    spec["output"] = {"uri": f"file://{folder / 'artifacts'}", **kept}
    spec.pop("managedBy", None)
    if isinstance(spec.get("tracking"), dict) and "mlflow" in spec["tracking"]:
        spec["tracking"] = {key: value for key, value in spec["tracking"].items() if key != "mlflow"}
        notes.append("spec.tracking.mlflow is ignored: its server belongs to a cluster")
    for role in ("learner", "rollout"):
        if isinstance(spec.get(role), dict):
            spec[role] = {key: value for key, value in spec[role].items() if key != "podTemplate"}
    made = {
        "apiVersion": names.API_VERSION,
        "kind": job["kind"],
        "metadata": {
            "name": job["metadata"]["name"],
            "namespace": job["metadata"].get("namespace") or "default",
            "labels": job["metadata"].get("labels") or {},
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "creationTimestamp": moment(now),
        },
        "spec": spec,
    }
    model = KINDS[job["kind"]]
    try:
        model.model_validate(made)
    except ValidationError as error:
        raise ManifestError("; ".join(mistakes(error, model))) from error
    if (spec.get("agent") or {}).get("sandboxed") or spec.get("suites"):
        field = "spec.suites" if spec.get("suites") else "spec.agent.sandboxed"
        raise ManifestError(f"{field}: a sandbox on one machine does not reach the gateway; use a cluster")
    return made, tuple(notes)


def lend(stored: JobFolder, job: Json, prices: Path | None, secrets: Iterable[str]) -> None:
    """Write the price book and Secrets into the job's folder, where its processes look for them.

    On a cluster they would be objects of the namespace.

    Args:
        stored: the job's folder.
        job: the job, as in its file.
        prices: the price book's file; None leaves the price book as it is.
        secrets: NAME=FILE for each Secret; the file has the Secret's token.

    Raises:
        ManifestError: a file cannot be read.
    """
    try:
        if prices is not None:
            name = job["spec"].get("priceBook") or names.PRICES_NAME
            stored.lend(f"config-maps/{name}/{names.PRICES_KEY}", prices.read_text())
        for each in secrets:
            name, equals, file = each.partition("=")
            if not equals:
                raise ManifestError(f"--secret {each}: write NAME=FILE")
            stored.lend(f"secrets/{name}/{names.TOKEN_KEY}", Path(file).read_text())
    except OSError as error:
        raise ManifestError(f"{error.filename}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError("--prices and --secret: write files of text") from error


def continued(stored: Json, made: Json, *, resume: bool) -> Json:
    """The stored job with the present spec, which may differ as an API server allows while no pod runs.

    Args:
        stored: the job in its folder.
        made: the job that `local` made from the present file.
        resume: end the job's present pause.

    Raises:
        ManifestError: a field was changed that must not change once the job has begun, or the job has ended.
    """
    model = KINDS[stored["kind"]]
    if made["kind"] != stored["kind"]:
        raise ManifestError(
            f"this folder has an {stored['kind']}, but the file is an {made['kind']}; name another with "
            "--folder, or write --fresh to delete the job in this one"
        )
    try:
        before = model.model_validate({**stored, "status": {}}).spec
    except ValidationError as error:
        wrong = "; ".join(mistakes(error, model))
        raise ManifestError(f"the job of this folder cannot be read: {wrong}; write --fresh") from error
    now = model.model_validate(made).spec
    if fixed := list(frozen(before, now)):
        raise ManifestError(
            f"a job that has begun keeps {', '.join(fixed[:3])}: write --fresh to delete it, or give this "
            "one another name to keep both"
        )
    end = next((each for each in ("Complete", "Failed") if progress.is_true(stored, each)), None)
    if end is not None and before != now:
        raise ManifestError(
            f"this job is {end}, and a change of its spec would do nothing: write --fresh to run it again. "
            "To train on from its weights, give this one another name and spec.model.warmStart"
        )
    metadata = dict(stored["metadata"])
    if before != now:
        metadata["generation"] += 1
    pause = stored["status"].get("pause", {}).get("time")
    if resume and pause is not None:
        metadata["annotations"] = {names.ANNOTATION_RESUME: pause}
    return {**stored, "metadata": metadata, "spec": made["spec"]}


def frozen(one: SpecModel, other: SpecModel, path: str = "spec") -> Iterator[str]:
    """Paths of fields that differ between two specs and must not change once a job has begun."""
    if type(one).mutable is None:
        return  # a block without `mutable` follows the block around it, which may change
    for name, field in type(one).model_fields.items():
        before, now = getattr(one, name), getattr(other, name)
        if before == now:
            continue
        at = f"{path}.{field.alias or name}"
        if name not in (type(one).mutable or ()):
            yield at
        elif isinstance(before, SpecModel) and isinstance(now, SpecModel):
            yield from frozen(before, now, at)
        elif at == "spec.schedule.maxSteps" and now < before:
            yield f"{at} or more than it"


def utc_now() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)
