"""The model that a job's rollout servers load."""

from __future__ import annotations

from pathlib import Path

from rollout_server import eval_config, job_config

from headway_rollout.__main__ import served


def test_candidates_of_one_base_share_servers_and_get_own_slots(tmp_path: Path) -> None:
    job = eval_config(tmp_path, tmp_path / "base", {"base": None, "small": 8, "large": 32})
    (tmp_path / "job.json").write_text(job.model_dump_json(by_alias=True))
    found = served({"HEADWAY_CONFIG": str(tmp_path / "job.json"), "HEADWAY_SERVER_SET": "0"})
    assert (found.lora_rank, found.adapters, found.updates) == (32, 2, False)
    assert found.field == "spec.candidates[base].model.base"


def test_a_plain_candidate_needs_no_adapters(tmp_path: Path) -> None:
    assert eval_config(tmp_path, tmp_path / "base", {"base": None}).served(0).lora_rank is None


def test_a_training_job_updates_what_its_servers_hold(tmp_path: Path) -> None:
    job = job_config(tmp_path, tmp_path / "base", model={"full": {}})
    (tmp_path / "job.json").write_text(job.model_dump_json(by_alias=True))
    found = served({"HEADWAY_CONFIG": str(tmp_path / "job.json")})
    assert (found.lora_rank, found.updates, found.field) == (None, True, "spec.model.base")
