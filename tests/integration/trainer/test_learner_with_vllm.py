"""Learner and real vLLM in one loop: what is published is what samples, and the two agree on every token.

The batches are sampled from the weights they are trained on, so every ratio must be 1 up to rounding. A
wrong temperature, a stale output head, an adapter that did not arrive or a row off by one all show here.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
from rollout_server import RolloutServer

from headway_api.records import (
    Batch,
    EpisodeRecord,
    GroupRecord,
    Outcome,
    PolicyVersion,
    Purpose,
    Row,
    VersionSpan,
)

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

STEPS, GROUPS, SIZE, TURNS, LENGTH = 3, 2, 4, 2, 12
CLOSE = 1e-3
"""Nats; 3e-6 to 1.5e-5 is usual in float32, whole nats where something is wrong."""


def sampled_group(
    server: RolloutServer, model: str, version: PolicyVersion, group_id: str, temperature: float
) -> GroupRecord:
    """Episodes of two turns, sampled by vLLM; the reward is the share of even token ids."""
    rng = random.Random(group_id)
    prompt = [rng.randrange(10, 500) for _ in range(20)]
    episodes = []
    for index in range(SIZE):
        tokens, mask, logprobs, spans = list(prompt), [0] * len(prompt), [0.0] * len(prompt), []
        for turn in range(TURNS):
            answer = server.generate(
                model,
                tokens,
                temperature=temperature,
                max_tokens=LENGTH,
                ignore_eos=True,
                seed=rng.randrange(2**31),
            )
            [choice] = answer["choices"]
            start = len(tokens)
            tokens += choice["token_ids"]
            logprobs += [entry["logprob"] for entry in choice["logprobs"]["content"]]
            mask += [1] * (len(tokens) - start)
            spans.append(VersionSpan(start=start, end=len(tokens), version=version))
            if turn < TURNS - 1:
                given = [rng.randrange(10, 500) for _ in range(5)]
                tokens, mask, logprobs = tokens + given, mask + [0] * 5, logprobs + [0.0] * 5
        even = sum(token % 2 == 0 for token, acted in zip(tokens, mask, strict=True) if acted)
        episodes.append(
            EpisodeRecord(
                episode_id=f"{group_id}-{index}-100",
                group_id=group_id,
                index=index,
                attempt=100,
                outcome=Outcome.COMPLETED,
                reward=even / (TURNS * LENGTH) + index * 1e-3,
                messages=[],
                turns=[],
                rows=[Row(tokens=tokens, mask=mask, logprobs=logprobs, versions=spans)],
                sandbox_seconds=0.0,
                started_at=0.0,
                finished_at=0.0,
            )
        )
    return GroupRecord(
        group_id=group_id,
        purpose=Purpose.TRAIN,
        row=0,
        epoch=0,
        step=version.step,
        episodes=episodes,
    )


@pytest.mark.parametrize(
    ("training", "temperature"),
    [
        pytest.param({"lora": {"rank": 4, "alpha": 8}}, 0.7, id="lora"),
        pytest.param({"full": {}}, 1.0, id="full"),
    ],
)
async def test_on_policy_every_ratio_is_one(
    tmp_path: Path, model: Path, training: dict[str, Any], temperature: float
) -> None:
    job = rig.job(
        tmp_path,
        model,
        lora=training.get("lora"),
        optimizer={"learningRate": 5e-3, "warmupSteps": 0},
        sampling={"temperature": temperature},
    )
    served = rig.ScriptedCoordinator([], hold=10**6)
    with RolloutServer(tmp_path / "server", model, model=training) as server:
        await asyncio.to_thread(server.wait_ready)
        async with served.serving() as url, rig.learner(job, tmp_path, url) as process:
            for step in range(1, STEPS + 1):
                await rig.reached(served, step - 1)
                manifest = served.reports[-1].weights
                state = await asyncio.to_thread(server.post, manifest)
                assert (state.ready, state.error) == (True, None)
                name = f"policy-{manifest.version}" if "lora" in training else "base"
                groups = [
                    await asyncio.to_thread(
                        sampled_group, server, name, manifest.version, f"t000-{n:06d}", temperature
                    )
                    for n in range(step * GROUPS, (step + 1) * GROUPS)
                ]
                served.batches.append(Batch(step=step, epoch=0, groups=groups))
                served.hold = 0
                await rig.reached(served, step)
                served.hold = 10**6 if step < STEPS else 0
            assert await process.exit() == 0, process.log.read_text()[-4000:]
    for report in served.reports[1:]:
        assert report.metrics["training/logprob_gap_max"] < CLOSE, report.metrics
        assert report.metrics["training/ratio_max"] == pytest.approx(1.0, abs=CLOSE)
        assert report.metrics["training/lag_max"] == 0
        assert report.metrics["training/grad_norm"] > 0
