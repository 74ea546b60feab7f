"""Full weights with a separate server for held-out rows: two real vLLMs, real coordinator, over a folder."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lease_service import lease_service
from ports import free_port
from role_keys import KEYS, TO_BROKER, TO_COORDINATOR
from rollout_server import RolloutServer, job_config, publish_full, score, version
from scripted_job import until_ready
from scripted_learner import ScriptedLearner
from tiny_model import write_model

from headway_api.artifacts import Layout
from headway_api.records import GroupRecord, WeightsManifest
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.spool import decode

ENVIRONMENT = Path(__file__).resolve().parents[3] / "examples" / "sop-quickstart"
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

SPEC: dict[str, Any] = {
    "environment": {"image": "environment", "entrypoint": "environment:RefundDesk"},
    "algorithm": {"batchSize": 2, "groupSize": 2, "maxStepsOffPolicy": 1},
    "schedule": {"maxSteps": 3, "maxEpochs": 2},
    "rollout": {"sampling": {"maxTokens": 24}, "maxConcurrency": 8, "timeoutSeconds": 120},
    "agent": {"builtin": {"maxTurns": 2}},
    "model": {"full": {}},
    "evaluation": {
        "everySteps": 2,
        "atStart": True,
        "servers": "Dedicated",
        "sampling": {"temperature": 1.0},
    },
}


def spec(folder: Path) -> dict[str, Any]:
    data = {name: {"uri": f"file://{folder}/{name}.jsonl"} for name in ("train", "validation", "test")}
    return SPEC | {"data": data, "output": {"uri": f"file://{folder}/store"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dedicated")
    code = "import environment, json; print(json.dumps(environment.case_ids()[:14]))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ENVIRONMENT, capture_output=True, check=True, text=True
    )
    cases = [{"prompt": f"Handle case {name}.", "case_id": name} for name in json.loads(run.stdout)]
    for name, rows in (("train", cases[:8]), ("validation", cases[8:12]), ("test", cases[12:])):
        (made / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_model(made / "base", seed=0, tied=True)
    return made


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[tuple[RolloutServer, RolloutServer]]:
    base, how = folder / "base", spec(folder)
    with (
        RolloutServer(folder / "train", base, **dict(how)) as train,
        RolloutServer(folder / "held-out", base, **dict(how)) as held_out,
    ):
        for server in (train, held_out):
            server.wait_ready(900)
        yield train, held_out


def taken(server: RolloutServer) -> list[str]:
    """Versions that a server took, in order."""
    return [entry["held"] for entry in server.events("weights") if entry["ready"]]


def differences(groups: list[GroupRecord], model: Any) -> list[float]:
    """For each sampled token, the server's log-probability minus that of a plain forward pass."""
    found = []
    for row in [row for group in groups for episode in group.scored for row in episode.rows]:
        expected = [0.0, *score(model, row.tokens)]
        found += [
            served - own
            for served, own, sampled in zip(row.logprobs, expected, row.mask, strict=True)
            if sampled
        ]
    return found


async def test_validations_have_their_own_weights_beside_training(
    folder: Path, servers: tuple[RolloutServer, RolloutServer]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    train, held_out = servers
    store, port = FileStore(), free_port()
    config = job_config(folder, folder / "base", **spec(folder))
    layout = Layout(config.spec.output.uri, config.namespace, config.name, config.uid)
    status: list[dict[str, Any]] = []
    published: dict[int, WeightsManifest] = {}

    async def to(server: RolloutServer) -> set[Endpoint]:
        return {Endpoint(server.url, server.agent_url)}

    def publish(step: int) -> WeightsManifest:
        found = publish_full(folder / "published", version(step), seed=step + 1, tied=True)
        published[step] = found
        return found

    async with lease_service(ENVIRONMENT, "environment:RefundDesk", TO_BROKER) as leases:
        coordinator = Coordinator(
            config,
            KEYS,
            store,
            folder / "cache",
            status.append,
            broker_url=leases.url,
            discover=lambda: to(train),
            discover_validation=lambda: to(held_out),
            port=port,
        )
        url = f"http://127.0.0.1:{port}"
        running = asyncio.create_task(coordinator.run())
        await until_ready(running, port)
        await asyncio.gather(ScriptedLearner(url, TO_COORDINATOR, store, layout, publish).run(), running)

    assert taken(train) == ["0.0", "0.1", "0.2", "0.3"]
    assert taken(held_out)[:3] == ["0.0", "0.2", "0.3"], "what is validated, and nothing between"
    validated = {
        step: [decode(store.get(uri)) for uri in store.list(layout.validation_groups(step))]
        for step in (0, 2, 3)
    }
    for step, groups in validated.items():
        model = AutoModelForCausalLM.from_pretrained(
            published[step].uri.removeprefix("file://"), dtype=torch.float32
        )
        off = differences(groups, model.eval())
        assert len(off) > 10
        assert max(map(abs, off)) < 1e-3, f"step {step} was sampled with other weights"
    ended = max(episode.finished_at for group in validated[0] for episode in group.episodes)
    trained = [decode(store.get(uri)) for uri in store.list(layout.train_groups)]
    assert min(episode.started_at for group in trained for episode in group.episodes) < ended
    assert [point["step"] for point in json.loads(store.get(layout.report))["curve"]] == [0, 2, 3]
    assert status[-1]["test"]["base"] is not None
