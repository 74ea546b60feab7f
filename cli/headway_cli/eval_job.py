"""Makes an evaluation from options and a training job, checks it, and writes its file."""

from __future__ import annotations

from pathlib import Path

import yaml

from headway_api import names
from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_cli import eval_manifest, job_file, near_names, where
from headway_cli.cluster import Cluster
from headway_cli.eval_manifest import EvalOptions
from headway_cli.local import manifest
from headway_cli.local.manifest import ManifestError


def written(
    asked: EvalOptions, training: Json | None, file: Path, *, local: bool = False
) -> tuple[str, Json]:
    """Write the evaluation to a file. Return the file's text, and the job in it.

    Args:
        asked: the options.
        training: the training job that supplies fields which the options lack; None if there is none.
        file: the file to write.
        local: whether the evaluation runs on this machine; spec.output is then not checked.

    Raises:
        ManifestError: an option or a field is wrong or missing.
    """
    made = eval_manifest.manifest(asked, training)
    name = str(made["metadata"]["name"])
    if not manifest.NAME.fullmatch(name):
        raise ManifestError(f"--name {name}: write a name of a-z, 0-9 and -, such as my-eval")
    text = yaml.safe_dump(made, sort_keys=False)
    file.write_text(text)
    document = manifest.read(file)
    _check(document, training, local=local)
    return text, document


def _check(document: Json, training: Json | None, *, local: bool) -> None:
    """Raise ManifestError if a field is wrong. A local job's spec.output is replaced by its folder later."""
    if local:
        document = {**document, "spec": {**document["spec"], "output": {"uri": "file:///"}}}
    try:
        job_file.checked(document)
    except ManifestError as error:
        if training is not None:
            raise
        raise ManifestError(f"{error}; --from FILE takes missing fields from a training job") from error


def training(
    file: Path | None, job: str | None, jobs: Path | None, context: str | None, namespace: str | None
) -> Json | None:
    """The training job that supplies the evaluation's missing fields; None without `file` and `job`.

    Args:
        file: file with the training job.
        job: name of a training job.
        jobs: folder with the folders of local jobs; None if `job` is on the cluster.
        context: context of the kubeconfig; None for the current one.
        namespace: namespace of the cluster; None for the context's.

    Raises:
        ManifestError: the file has another kind of job, or no local job has this name.
        ClusterError: the cluster has no such job, or does not answer.
    """
    if file is not None:
        found = manifest.read(file)
        if found["kind"] != names.TRAINING_KIND:
            raise ManifestError(
                f"--from {file}: write the file of an RLTrainingJob, not of an {found['kind']}"
            )
        return found
    if job is None:
        return None
    if jobs is None:
        return _bare(Cluster(context, namespace).job(names.TRAINING_KIND, job))
    if not where.is_local_job(jobs / job):
        hint = near_names.question(job, (each.name for each in where.local_jobs(jobs))) or "write --from FILE"
        raise ManifestError(f"--job {job}: no job of that name ran here ({jobs / job}); {hint}")
    return _bare(JobFolder(jobs / job).whole())


def _bare(stored: Json) -> Json:
    """A stored job in the format of a manifest."""
    metadata = {key: stored["metadata"][key] for key in ("name", "namespace") if key in stored["metadata"]}
    return {"kind": stored["kind"], "metadata": metadata, "spec": stored["spec"]}
