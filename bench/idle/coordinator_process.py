"""Runs a coordinator with a benchmark's API server: `python -m bench.idle.coordinator_process FOLDER`.

FOLDER contains `run.json` (ports, kubeconfig, the broker's address) and `job.json`. Everything else is the
product's own code. It finds no rollout server, because the servers' names cannot be resolved.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import uvloop
from kubernetes import client, config
from role_keys import KEYS

from headway_api import logs
from headway_api.config import JobConfig
from headway_api.store import open_store
from headway_coordinator import status as status_writer
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.lifetime import serve
from headway_coordinator.stored_job import KubernetesJob


def main(folder: Path) -> None:
    """Run the coordinator until a signal ends it."""
    logs.setup()
    run = json.loads((folder / "run.json").read_text())
    job = JobConfig.model_validate_json((folder / "job.json").read_text())
    stored = KubernetesJob(job, client.CustomObjectsApi(config.new_client_from_config(run["kubeconfig"])))
    coordinator = Coordinator(
        job,
        KEYS,
        open_store(job.spec.output),
        folder / "cache",
        status_writer.sink_of(stored),
        previous=status_writer.previous_status(stored),
        broker_url=run["broker_url"],
        port=run["port"],
        gateway_port=run["gateway_port"],
    )
    uvloop.run(serve(coordinator))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
