"""Starts a real MLflow tracking server for a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from first_answer import until_it_answers
from ports import free_port


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The address of a server that keeps its files in `folder`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        until_it_answers(process, f"{url}/health", folder / "log")
        yield url
    finally:
        process.terminate()
        process.wait(30)
