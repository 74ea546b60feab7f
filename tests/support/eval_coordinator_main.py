"""An evaluation's coordinator as a process without a cluster: `python eval_coordinator_main.py FOLDER`.

FOLDER contains `run.json` (ports and addresses), `job.json`, and `status.json`: the coordinator's last
status, which the next process reads. A process that is killed and started again is like a restarted pod.

`loaded` gets a line each time that the process says that everything is loaded.

Whenever the process writes its status, it scrapes its own `/metrics` into `metrics.txt`. So the last scrape
belongs to the final status.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import uvloop
from role_keys import KEYS

from headway_api import logs
from headway_api import status as st
from headway_api.config import EvalConfig
from headway_api.exits import job_error, leave
from headway_api.store import open_store
from headway_coordinator import garbage_collection
from headway_coordinator.agents.choice import GatewayAddresses
from headway_coordinator.evaluation.job import EvalCoordinator
from headway_coordinator.lifetime import serve


def main(folder: Path) -> None:
    logs.setup()
    run = json.loads((folder / "run.json").read_text())
    job = EvalConfig.model_validate_json((folder / "job.json").read_text())
    status = folder / "status.json"

    def sink(document: dict[str, Any]) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{run['port']}/metrics", timeout=10) as answer:
            replace(folder / "metrics.txt", answer.read())
        replace(status, json.dumps(document).encode())

    gateway = f"http://127.0.0.1:{run['gateway_port']}"
    coordinator = EvalCoordinator(
        job,
        KEYS,
        open_store(job.spec.output),
        folder / "cache",
        sink,
        previous=st.RLEvalJobStatus.model_validate_json(status.read_text()) if status.exists() else None,
        broker_url=run["broker_url"],
        suite_broker_urls=run["suite_broker_urls"],
        port=run["port"],
        gateway_port=run["gateway_port"],
        at=GatewayAddresses(gateway, gateway),
    )

    def loaded() -> None:
        garbage_collection.exclude_loaded()
        with (folder / "loaded").open("a") as file:
            file.write("once\n")

    coordinator.on_loaded = loaded
    try:
        uvloop.run(serve(coordinator))
    except BaseException as error:
        found = job_error(error)
        if found is None:
            raise
        leave(found)


def replace(path: Path, content: bytes) -> None:
    """Write a file so that no reader sees a part of it."""
    whole = path.with_suffix(".new")
    whole.write_bytes(content)
    os.replace(whole, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
