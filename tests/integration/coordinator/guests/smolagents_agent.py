"""Agents of smolagents, as they are: `row.style` is `code` or `tools`. Both send `stop` with every turn."""

from __future__ import annotations

from typing import Any

import requests
from service import serve
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


@tool
def look_up(key: str) -> str:
    """Look a thing up.

    Args:
        key: Name of the thing.
    """
    return f"{key} is gold"


def act(payload: dict[str, Any]) -> Any:
    metadata = payload["metadata"]
    model = OpenAIModel(model_id="default", api_base=f"{metadata['endpoint']}/v1", api_key="unused")
    kind = CodeAgent if payload["instance"]["style"] == "code" else ToolCallingAgent
    agent = kind(tools=[look_up], model=model, max_steps=4, verbosity_level=0)
    told = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    status, answer = "ready", ""
    try:
        answer = str(agent.run(payload["prompt"]))
    except Exception as error:
        status, answer = "failed", f"{type(error).__name__}: {error}"
    done = told | {"Status": status} | ({} if status == "ready" else {"ErrorMessage": answer})
    requests.post(f"{metadata['endpoint']}/complete-rollout", json=done)
    if status == "ready":
        reward = told | {"Rewards": [1.0 if "gold" in answer else 0.0]}
        requests.post(f"{metadata['endpoint']}/update-reward", json=reward)
    return {"answer": answer}


if __name__ == "__main__":
    serve(act)
