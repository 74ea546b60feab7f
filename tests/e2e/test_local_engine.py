"""The local engine and a cluster run the same job, and sample the same trajectories, token for token."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chaos import EXAMPLE
from safetensors.numpy import load_file

from headway_api.document import Json
from headway_coordinator.spool import decode
from headway_demo import quickstart
from headway_demo.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

STEPS = 3
Sampled = Mapping[str, list[list[list[int]]]]
"""Group -> episode -> row -> tokens."""


def on_cluster(bench: Any, job: Json, folder: Path) -> Path:
    """The folder with what the job wrote on the cluster."""
    name = job["metadata"]["name"]
    bench.kube.apply(job)
    bench.wait_condition(name, "Complete", deadline_s=400)
    with bench.platform.bucket() as bucket:
        bucket.download(bench.get(name)["status"]["artifacts"]["uri"], folder)
    bench.delete(name)
    return folder


def here(job: Json, folder: Path) -> Path:
    """What the same job wrote on this machine, from the model and rows that the cluster's job has too."""
    settings = Settings.from_environ({})
    inputs = quickstart.inputs(settings.cache, settings.seed)
    places = {
        "model.base": "model",
        "data.train.uri": "train.jsonl",
        "data.validation.uri": "validation.jsonl",
    }
    file = folder.with_suffix(".json")
    file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "headway_cli", "run", str(file), "--local", "--folder", str(folder)]
    command += ["--environment", str(EXAMPLE)]
    command += [
        word for at, name in places.items() for word in ("--set", f"spec.{at}=file://{inputs}/{name}")
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = folder.glob("artifacts/*/*/*")
    return run


def sampled(run: Path) -> Sampled:
    groups = [decode(path.read_bytes()) for path in sorted(run.glob("trajectories/train/*.json.gz"))]
    return {
        group.group_id: [[row.tokens for row in episode.rows] for episode in group.episodes]
        for group in groups
    }


def adapter(run: Path) -> Mapping[str, Any]:
    return load_file(run / f"weights/{STEPS:06d}/adapter_model.safetensors")


def test_both_engines_sample_the_same_trajectories(bench: Any, tmp_path: Path) -> None:
    job = bench.job("twin", {"schedule": {"maxSteps": STEPS}, "algorithm": {"maxStepsOffPolicy": 0}})
    cluster, local = on_cluster(bench, job, tmp_path / "cluster"), here(job, tmp_path / "local")
    there, own = sampled(cluster), sampled(local)
    trained = STEPS * job["spec"]["algorithm"]["batchSize"]
    assert len(there) >= trained
    assert {name: own.get(name) for name in there} == there
    apart = max(float(np.abs(value - adapter(local)[name]).max()) for name, value in adapter(cluster).items())
    print(f"weights of step {STEPS} are {apart:g} apart at most")
    # Sums in another order differ by a few of float32's last digits; an update moves a weight by 2e-3.
    assert apart <= 1e-6
