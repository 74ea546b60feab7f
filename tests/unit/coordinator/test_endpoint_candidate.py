"""What an endpoint candidate's spec decides: its token, its patience, and how many episodes run at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from endpoint_service import MODEL, serving

from headway_api.config import EvalConfig
from headway_coordinator.endpoint import candidate
from headway_coordinator.endpoint.candidate import (
    connected,
    episodes_at_once,
    patience,
    token_in_time,
    token_of,
)
from headway_coordinator.endpoint.owner import OfCandidate
from headway_coordinator.faults import CandidateError
from headway_coordinator.gateway.asks import Ask, Sampling, Session

NAME = "front-ier"


def config(url: str = "http://x/v1", endpoint: dict[str, Any] | None = None, **spec: Any) -> EvalConfig:
    wanted = {"url": url, "model": MODEL, "secretRef": {"name": "keys"}} | (endpoint or {})
    content = {
        "candidates": [{"name": NAME, "endpoint": wanted}],
        "data": {"uri": "s3://b/rows.jsonl"},
        "environment": {"image": "environment", "entrypoint": "environment:Environment"},
        "output": {"uri": "s3://b/out"},
    } | spec
    about = {"name": "judge", "namespace": "ns", "uid": "u", "kind": "RLEvalJob", "candidates": []}
    return EvalConfig.model_validate(about | {"spec": content})


def secret(folder: Path, token: str | None) -> Path:
    """A folder as the kubelet fills it. If `token` is None, the candidate's folder is empty."""
    (folder / NAME).mkdir()
    if token is not None:
        (folder / NAME / "token").write_text(token)
    return folder


async def test_the_token_of_a_candidates_secret_is_sent(tmp_path: Path) -> None:
    async with serving() as service:
        job = config(service.url)
        candidate = job.spec.candidates[0]
        assert candidate.endpoint is not None
        token = token_of(NAME, candidate.endpoint, secret(tmp_path, " sk-1\n"))
        owner = OfCandidate(NAME)
        async with connected(owner, candidate.endpoint, token, timeout=20.0, patience=60.0) as chat:
            await chat.chat(Session("e", 1, Sampling(1.0, 1.0, 8)), Ask([{"role": "user", "content": "?"}]))
    assert service.tokens == ["Bearer sk-1"]


@pytest.mark.parametrize("token", [None, "", "  \n", "two\nlines", "caf\u00e9", "nul\0"])
def test_a_token_that_cannot_be_sent_names_its_secret(tmp_path: Path, token: str | None) -> None:
    spec = config().spec.candidates[0].endpoint
    assert spec is not None
    with pytest.raises(CandidateError, match="Secret keys") as caught:
        token_of(NAME, spec, secret(tmp_path, token))
    assert caught.value.field == f"spec.candidates[{NAME}].endpoint.secretRef"
    assert not (token or "").strip() or token not in str(caught.value)


async def test_a_secret_may_be_created_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate, "LOOK_SECONDS", 0.01)
    spec, reasons = config().spec.candidates[0].endpoint, list[str]()
    assert spec is not None
    secret(tmp_path, None)

    def still(why: str) -> bool:
        reasons.append(why)
        if len(reasons) == 3:
            (tmp_path / NAME / "token").write_text("sk-1")
        return True

    assert await token_in_time(NAME, spec, tmp_path, 60.0, still) == "sk-1"
    assert len(reasons) == 3
    assert "the key `token` of the Secret keys is missing or empty" in reasons[0]


def test_a_candidates_patience_ends_before_that_of_its_rows() -> None:
    rollout = {"timeoutSeconds": 100, "maxRetries": 2}
    assert patience(config(rollout=rollout).spec) == 300.0
    assert patience(config(rollout=rollout, pendingDeadlineSeconds=60).spec) == 60.0


@pytest.mark.parametrize(
    ("limits", "episodes"),
    [
        ({"maxConcurrency": 5}, 5),
        ({"maxConcurrency": 5, "requestsPerMinute": 6000}, 5),
        ({"maxConcurrency": 64, "requestsPerMinute": 8}, 4),
        ({"requestsPerMinute": 1}, 1),
    ],
)
def test_only_as_many_episodes_run_as_finish_in_time(limits: dict[str, int], episodes: int) -> None:
    job = config(endpoint=limits, agent={"builtin": {"maxTurns": 10}}, rollout={"timeoutSeconds": 600})
    spec = job.spec.candidates[0].endpoint
    assert spec is not None
    assert episodes_at_once(job.spec, spec) == episodes
