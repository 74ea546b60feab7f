"""The coordinator as a process without a cluster: `python coordinator_main.py FOLDER`.

FOLDER contains what a cluster would provide:

- `run.json`: ports and addresses.
- `job.json`: the job.
- `endpoints.json`: the current rollout servers, read at each discovery.
- `status.json`: the coordinator's last status, which the next process reads.

A process that is killed and started again is like a restarted pod.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import uvloop
from role_keys import KEYS

from headway_api import logs
from headway_api import status as st
from headway_api.config import JobConfig
from headway_api.store import open_store
from headway_coordinator.agents.choice import addresses_of
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.lifetime import serve


def main(folder: Path) -> None:
    logs.setup()
    run = json.loads((folder / "run.json").read_text())
    job = JobConfig.model_validate_json((folder / "job.json").read_text())
    status = folder / "status.json"

    async def discover() -> set[Endpoint]:
        found = json.loads((folder / "endpoints.json").read_text())
        return {Endpoint(engine, weights) for engine, weights in found}

    def sink(document: dict[str, Any]) -> None:
        whole = folder / "status.new"
        whole.write_text(json.dumps(document))
        os.replace(whole, status)

    previous = st.RLTrainingJobStatus.model_validate_json(status.read_text()) if status.exists() else None
    at = addresses_of(job, "127.0.0.1", run["gateway_port"])
    coordinator = Coordinator(
        job,
        KEYS,
        open_store(job.spec.output),
        folder / "cache",
        sink,
        previous=previous,
        broker_url=run["broker_url"],
        discover=discover,
        port=run["port"],
        gateway_port=run["gateway_port"],
        at=type(at)(service=at.pod, pod=at.pod),
    )
    uvloop.run(serve(coordinator))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
