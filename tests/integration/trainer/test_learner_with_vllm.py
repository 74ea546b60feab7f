"""Learner and real vLLM in one loop: vLLM samples with the published weights, and both agree on every token.

The batches are sampled with the weights that are trained, so every ratio must be 1 except for rounding. A
wrong temperature, a stale output head, an adapter that did not arrive or a row shifted by one would show
here.
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
    TrainingRow,
    VersionSpan,
)

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

STEPS, GROUPS, SIZE, TURNS, LENGTH = 3, 2, 4, 2, 12
CLOSE = 1e-3
"""Tolerance in nats. The difference is 3e-6 to 1.5e-5 in float32 if all is right, and whole nats if not."""


def sampled_group(
    server: RolloutServer,
    model: str,
    version: PolicyVersion,
    group_id: str,
    temperature: float,
    prompt_tokens: int = 20,
) -> GroupRecord:
    """Episodes of two turns, sampled by vLLM; the reward is the share of even token ids."""
    rng = random.Random(group_id)
    prompt = [rng.randrange(10, 500) for _ in range(prompt_tokens)]
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
                rows=[TrainingRow(tokens=tokens, mask=mask, logprobs=logprobs, versions=spans)],
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
        pytest.param({"lora": {"rank": 9, "alpha": 8, "rsLora": True}}, 1.0, id="rsLoRA"),
        pytest.param({"full": {}}, 1.0, id="full"),
    ],
)
async def test_on_policy_every_ratio_is_one(
    tmp_path: Path, model: Path, training: dict[str, Any], temperature: float
) -> None:
    await on_policy(tmp_path, model, training, temperature)


@pytest.mark.parametrize("context", [256, 64], ids=["long factors", "short factors"])
async def test_of_a_stretched_model_every_ratio_is_one(
    tmp_path: Path, stretched_model: Path, context: int
) -> None:
    """Longrope uses other factors beyond 64 tokens. Rows have 69 tokens, or 49 if the context is 64."""
    training = {"full": {}, "contextLength": context}
    await on_policy(tmp_path, stretched_model, training, 1.0, prompt=40 if context > 64 else 20)


async def on_policy(
    tmp_path: Path, model: Path, training: dict[str, Any], temperature: float, prompt: int = 20
) -> None:
    """Train on episodes that vLLM sampled with the weights that are trained."""
    job = rig.job(
        tmp_path,
        model,
        lora=training.get("lora"),
        optimizer={"learningRate": 5e-3, "warmupSteps": 0},
        sampling={"temperature": temperature},
    )
    if "contextLength" in training:
        content = job.model_dump(by_alias=True, exclude_none=True)
        content["spec"]["model"]["contextLength"] = training["contextLength"]
        content["spec"]["rollout"]["sampling"]["maxTokens"] = 1
        job = type(job).model_validate(content)
    served = rig.ScriptedCoordinator([], hold=10**6)
    few: dict[str, Any] = {"rollout": {"sampling": {"maxTokens": 1}, "maxConcurrency": 16}}
    spec = few if "contextLength" in training else {}
    with RolloutServer(tmp_path / "server", model, model=training, **spec) as server:
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
                        sampled_group,
                        server,
                        name,
                        manifest.version,
                        f"t000-{n:06d}",
                        temperature,
                        prompt,
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
