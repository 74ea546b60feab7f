"""`python -m headway_coordinator`: the coordinator of one RLTrainingJob or RLEvalJob."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import uvloop

from headway_api import config, keys, last_logs, logs, names
from headway_api.config import EvalConfig, JobConfig
from headway_api.exits import JobError, job_error, leave, not_final
from headway_api.job_folder import JobFolder
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_api.store import open_store
from headway_api.store_unavailable import Patience, store_explained
from headway_coordinator import garbage_collection
from headway_coordinator import status as status_writer
from headway_coordinator.coordinator import Coordinator, begun
from headway_coordinator.evaluation.job import EvalCoordinator
from headway_coordinator.lifetime import serve
from headway_coordinator.process import Process
from headway_coordinator.stored_job import FolderJob, KubernetesJob, StoredJob

_log = logging.getLogger(__name__)


def main() -> None:
    """Entry point of the coordinator's pod."""
    logs.setup()
    # The parser of tool calls parses text of the model as Python. Its syntax warnings do not belong in this
    # log.
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    try:
        job = config.load_any(os.environ)
        own_keys = keys.load(os.environ, names.COORDINATOR)
        last_logs.begin(os.environ, job, own_keys.values(), names.COORDINATOR)
        logs.setup()
        process, patience = process_of(job, own_keys)
        process.on_loaded = garbage_collection.exclude_loaded
        with store_explained():
            uvloop.run(serve(process, patience.over.set))
    except asyncio.CancelledError:
        sys.exit(143)
    except (Exception, BaseExceptionGroup) as error:
        found = job_error(error)
        if found is None:
            _log.exception("failed")
            found = JobError("CoordinatorFailed", f"{type(error).__name__}: {error}", permanent=False)
        leave(found)
    finally:
        last_logs.keep_at_end()


def process_of(job: JobConfig | EvalConfig, own_keys: keys.Keys) -> tuple[Process, Patience]:
    """The process for the job's kind, and the patience that bounds its waits for the store."""
    cache = Path(os.environ.get(names.ENV_CACHE, names.CACHE_DIR))
    patience = Patience()
    port = int(os.environ.get(names.ENV_COORDINATOR_PORT, names.PORT_COORDINATOR))
    stored = stored_job(job, os.environ)
    sink = status_writer.sink_of(stored) if stored else status_writer.log_sink
    if isinstance(job, EvalConfig):
        before = status_writer.previous_evaluation_status(stored) if stored else RLEvalJobStatus()
        with not_final(before.progress is not None):
            store = open_store(job.spec.output, patience)
        return EvalCoordinator(job, own_keys, store, cache, sink, previous=before, port=port), patience
    previous = status_writer.previous_status(stored) if stored else RLTrainingJobStatus()
    with not_final(begun(previous)):
        store = open_store(job.spec.output, patience)
    return Coordinator(job, own_keys, store, cache, sink, previous=previous, port=port), patience


def stored_job(job: JobConfig | EvalConfig, environ: Mapping[str, str]) -> StoredJob | None:
    """The stored job whose status this process writes.

    It is in the folder that the environment names, or else at the API server of the pod's cluster. None if
    there is no folder and no cluster.
    """
    if (folder := environ.get(names.ENV_JOB_FOLDER)) is not None:
        return FolderJob(JobFolder(Path(folder)))
    return KubernetesJob.in_cluster(job) if "KUBERNETES_SERVICE_HOST" in environ else None


if __name__ == "__main__":
    main()
