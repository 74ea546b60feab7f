"""Unmodified agents of smolagents: `row.style` is `code` or `tools`. Both send `stop` with every turn.

`row.more` is what the user says after the first answer: the agent keeps its memory. With `row.shaped` a code
agent asks for each step as JSON.
"""

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
    metadata, instance = payload["metadata"], payload["instance"]
    model = OpenAIModel(model_id="default", api_base=f"{metadata['endpoint']}/v1", api_key="unused")
    kind = CodeAgent if instance["style"] == "code" else ToolCallingAgent
    settings = {"use_structured_outputs_internally": True} if instance.get("shaped") else {}
    agent = kind(tools=[look_up], model=model, max_steps=4, verbosity_level=0, **settings)
    ids = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    status, answer = "ready", ""
    try:
        for number, words in enumerate([payload["prompt"], *instance.get("more", [])]):
            answer = str(agent.run(words, reset=number == 0))
    except Exception as error:
        status, answer = "failed", f"{type(error).__name__}: {error}"
    done = ids | {"Status": status} | ({} if status == "ready" else {"ErrorMessage": answer})
    requests.post(f"{metadata['endpoint']}/complete-rollout", json=done)
    if status == "ready":
        reward = ids | {"Rewards": [1.0 if "gold" in answer else 0.0]}
        requests.post(f"{metadata['endpoint']}/update-reward", json=reward)
    return {"answer": answer}


if __name__ == "__main__":
    serve(act)
