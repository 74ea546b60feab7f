"""An evaluation whose environment asks a judge. Each candidate's episodes may ask it, and the job pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import aiohttp
import judge_rig
from endpoint_service import MODEL, listing, says
from endpoint_service import serving as endpoint
from evaluation_rig import EvalJob, spec
from lease_service import lease_service

from headway_analysis.billing.segments import total
from headway_api.config import EvalConfig
from headway_api.records import UsageClass
from headway_api.status import ResolvedCandidate
from headway_coordinator.evaluation.units import Units
from headway_coordinator.sandboxes import Broker


async def test_a_candidates_episodes_ask_the_jobs_judge(tmp_path: Path) -> None:
    (tmp_path / "grader.py").write_text(judge_rig.ENVIRONMENT)
    no = cast(Any, None)
    async with (
        endpoint(says("It is gold."), models=listing(MODEL)) as candidate,
        endpoint(says('{"grade": 0.25}')) as judge,
        judge_rig.judges(tmp_path, judge_rig.spec(judge.url)) as judges,
        lease_service(tmp_path, "grader:Grader", "t") as leases,
        aiohttp.ClientSession() as http,
    ):
        asked = {"name": "other", "endpoint": {"url": candidate.url, "model": MODEL}}
        job = EvalJob(tmp_path / "job", spec(candidates=[asked]), rows=1)
        job.rows = [{"prompt": "?", "reward": judge_rig.ASKS}]
        evaluation = await job.coordinator()
        of = EvalConfig(
            name="job",
            namespace="ns",
            uid="uid",
            spec=job.spec,
            candidates=(ResolvedCandidate(name="other", kind="Endpoint"),),
        )
        broker = Broker(http, leases.url, "t", "me")
        units = Units(
            of, evaluation.state, no, "key", job.store, tmp_path, broker, no, no, no, no, judges=judges
        )
        await evaluation.run([*units.all()])
        assert evaluation.state.candidates["other"].stage == "Complete"
        assert len(judge.bodies) == 1, "both tries of a row ask the same"
    rewards = [one.reward for one in evaluation.state.candidates["other"].all_tries]
    assert rewards == [0.25, 0.25]
    counted = total(job.ledger.days)
    assert (counted[UsageClass.JUDGE_PROMPT], counted[UsageClass.JUDGE_SAMPLE]) == (20, 5)
