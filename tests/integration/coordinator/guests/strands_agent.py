"""A Strands agent as its users write them, and MTRL's two calls without any SDK.

`row.style`: `stream` (with stream_options, as Strands sends them by itself) or `whole`. `row.more` is what
the same agent is asked after its first answer. With `row.shaped` each answer is a pydantic model.
"""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import BaseModel
from service import serve
from strands import Agent, tool
from strands.models.openai import OpenAIModel


class Answer(BaseModel):
    """The metal that a thing is made of."""

    metal: str


@tool
def look_up(key: str) -> dict[str, Any]:
    """Look a thing up.

    Args:
        key: Name of the thing.
    """
    # Two text blocks, which Strands joins.
    return {"status": "success", "content": [{"text": f"{key} is"}, {"json": {"metal": "gold"}}]}


async def act(payload: dict[str, Any]) -> Any:
    metadata, instance = payload["metadata"], payload["instance"]
    model = OpenAIModel(
        client_args={"api_key": "unused", "base_url": f"{metadata['endpoint']}/v1"},
        model_id="default",
        params={"max_tokens": payload["inferenceParams"]["maxTokens"], "temperature": 0.7},
        stream=instance["style"] == "stream",
    )
    agent = Agent(
        model=model,
        tools=[look_up],
        system_prompt="Use the tool, then answer.",
        callback_handler=None,
    )
    status, answer = "ready", ""
    try:
        # Every message has text blocks, as Strands writes them.
        first = [{"text": "Here is the task."}, {"text": payload["prompt"]}]
        shape = {"structured_output_model": Answer} if instance.get("shaped") else {}
        for words in [first, *instance.get("more", [])]:
            found = await agent.invoke_async(words, **shape)
            answer = found.structured_output.metal if shape else str(found)
    except Exception as error:
        status, answer = "failed", f"{type(error).__name__}: {error}"
    ids = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    async with httpx.AsyncClient() as client:
        done = {"Status": status} if status == "ready" else {"Status": status, "ErrorMessage": answer}
        await client.post(f"{metadata['endpoint']}/complete-rollout", json=ids | done)
        if status == "ready":
            reward = {
                "Rewards": [1.0 if "gold" in answer else 0.0],
                "Metrics": {"words": len(answer.split())},
            }
            await client.post(f"{metadata['endpoint']}/update-reward", json=ids | reward)
    return {"answer": answer}


if __name__ == "__main__":
    serve(act)
