"""An endpoint candidate as its spec describes it: token, patience, episodes at the same time."""

from __future__ import annotations

from typing import Any

import pytest
from endpoint_service import MODEL, serving

from headway_api.config import EvalConfig
from headway_coordinator.endpoint.candidate import connected, episodes_at_once, patience, token_of
from headway_coordinator.faults import CandidateFault
from headway_coordinator.gateway.core import Ask, Sampling, Session

NAME = "front-ier"
VARIABLE = "HEADWAY_ENDPOINT_TOKEN_FRONT_IER"


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


async def test_the_token_of_the_environment_is_sent() -> None:
    async with serving() as service:
        job = config(service.url)
        async with connected(job, job.spec.candidates[0], {VARIABLE: " sk-1\n"}) as chat:
            await chat.chat(Session("e", 1, Sampling(1.0, 1.0, 8)), Ask([{"role": "user", "content": "?"}]))
    assert service.tokens == ["Bearer sk-1"]


@pytest.mark.parametrize("token", [None, "", "  \n", "two\nlines", "caf\u00e9", "nul\0"])
def test_a_token_that_cannot_be_sent_names_its_secret(token: str | None) -> None:
    spec = config().spec.candidates[0].endpoint
    assert spec is not None
    with pytest.raises(CandidateFault, match="Secret keys") as caught:
        token_of(NAME, spec, {} if token is None else {VARIABLE: token})
    assert caught.value.field == f"spec.candidates[{NAME}].endpoint.secretRef"
    assert not (token or "").strip() or token not in str(caught.value)


def test_a_candidate_is_given_up_before_its_rows_are() -> None:
    rollout = {"timeoutSeconds": 100, "maxRetries": 2}
    assert patience(config(rollout=rollout)) == 300.0
    assert patience(config(rollout=rollout, pendingDeadlineSeconds=60)) == 60.0


@pytest.mark.parametrize(
    ("limits", "episodes"),
    [
        ({"maxConcurrency": 5}, 5),
        ({"maxConcurrency": 5, "requestsPerMinute": 6000}, 5),
        ({"maxConcurrency": 64, "requestsPerMinute": 8}, 4),
        ({"requestsPerMinute": 1}, 1),
    ],
)
def test_so_many_episodes_run_that_their_turns_fit_their_time(limits: dict[str, int], episodes: int) -> None:
    job = config(endpoint=limits, agent={"builtin": {"maxTurns": 10}}, rollout={"timeoutSeconds": 600})
    spec = job.spec.candidates[0].endpoint
    assert spec is not None
    assert episodes_at_once(job, spec) == episodes
