"""An agent made for SageMaker MTRL with its SDK, in the ways that the SDK's own docs show.

The row's `style` says which:

- `handler`: the decorator around a Strands agent whose model is wrapped.
- `standalone`: the same without the decorator.
- `custom`: another client with the SDK's headers.
- `fixed`: the decorator around a module-level model, whose base URL is the runtime's, not the episode's.

`row.say` is reported instead of the reward. `row.mood` is how the agent misbehaves. The platform posts one
prompt. `row.more` is what the user says to the same agent after the first answer. With `row.shaped`, each
answer is a pydantic model.
"""

from __future__ import annotations

import math
import os
from typing import Any

from openai import OpenAI
from pydantic import BaseModel
from sagemaker.train.rft import (
    RolloutFeedbackClient,
    RolloutRequest,
    clear_rollout_context,
    make_inference_headers,
    sagemaker_rft_handler,
    set_rollout_context,
)
from sagemaker.train.rft.adapters.strands import wrap_model
from service import serve
from strands import Agent, tool
from strands.models.openai import OpenAIModel

NUMBERS = {"nan": math.nan, "inf": math.inf, "much": 7.0, "three": [0.1, 0.1, 0.1], "each": [0.25, 0.5]}


class Answer(BaseModel):
    """The metal that a thing is made of."""

    metal: str


@tool
def look_up(key: str) -> str:
    """Look a thing up.

    Args:
        key: Name of the thing.
    """
    return f"{key} is gold"


def agent_at(endpoint: str) -> Agent:
    """A Strands agent whose model is at an endpoint."""
    model = OpenAIModel(client_args={"api_key": "unused", "base_url": f"{endpoint}/v1"}, model_id="default")
    return Agent(model=wrap_model(model), tools=[look_up], callback_handler=None)


def worth(instance: dict[str, Any], answer: str) -> Any:
    """The reward of an answer by the agent's own judgement, or the one that the row wants reported."""
    return NUMBERS.get(str(instance.get("say")), 1.0 if "gold" in answer else 0.0)


@sagemaker_rft_handler
async def handled(payload: dict[str, Any]) -> Any:
    instance, feedback = payload["instance"], RolloutFeedbackClient(payload["metadata"])
    mood = instance.get("mood")
    if mood == "foreign":
        RolloutFeedbackClient(payload["metadata"] | {"trajectory_id": "t0-000000-7-0"}).complete_rollout()
    agent = agent_at(payload["metadata"]["endpoint"])
    shape = {"structured_output_model": Answer} if instance.get("shaped") else {}
    for words in [payload["prompt"], *instance.get("more", [])]:
        result = await agent.invoke_async(words, **shape)
    reward = worth(instance, str(result.structured_output if shape else result))
    if mood == "raise":
        raise ValueError("the agent lost its mind")
    if mood == "error":
        return {"status": "error", "error": "it went wrong", "reward": 0.0}
    if mood == "partial":
        feedback.report_error("half of it went wrong", reward=0.5)
        return {"status": "skipped"}
    if mood == "twice":  # the decorator completes it again
        feedback.report_complete(reward)
    if mood == "more":
        feedback.complete_rollout()
        await agent_at(payload["metadata"]["endpoint"]).invoke_async("And now?")
    return {"reward": reward}


RUNTIME = os.environ.get("RFT_RUNTIME_ENDPOINT", "http://unset.invalid")
MODEL = wrap_model(
    OpenAIModel(client_args={"api_key": "unused", "base_url": f"{RUNTIME}/v1"}, model_id="default")
)


@sagemaker_rft_handler
async def fixed(payload: dict[str, Any]) -> Any:
    agent = Agent(model=MODEL, tools=[look_up], callback_handler=None)
    return {"reward": worth(payload["instance"], str(await agent.invoke_async(payload["prompt"])))}


def standalone(payload: dict[str, Any]) -> None:
    metadata = payload["metadata"]
    set_rollout_context(metadata, payload["inference_params"])
    try:
        agent, instance = agent_at(metadata["endpoint"]), payload["instance"]
        for words in [instance["prompt"], *instance.get("more", [])]:
            result = agent(words)
        RolloutFeedbackClient(metadata).report_complete(worth(instance, str(result)))
    finally:
        clear_rollout_context()


def custom(payload: dict[str, Any]) -> None:
    request = RolloutRequest.model_validate(payload)
    headers = make_inference_headers(request.metadata)
    client = OpenAI(api_key="unused", base_url=request.metadata.endpoint, default_headers=headers)
    asked = [{"role": "user", "content": request.instance["prompt"]}]
    answer = client.chat.completions.create(
        model=request.model_name or "default",
        messages=asked,
        temperature=request.inference_params.temperature,
    )
    reward = worth(request.instance, answer.choices[0].message.content)
    RolloutFeedbackClient(request.metadata).report_complete(reward)


async def act(payload: dict[str, Any]) -> Any:
    style = payload["instance"]["style"]
    if style == "handler":
        return await handled(payload)
    if style == "fixed":
        metadata = {name: value for name, value in payload["metadata"].items() if name != "endpoint"}
        return await fixed(payload | {"metadata": metadata})
    return {"standalone": standalone, "custom": custom}[style](payload)


if __name__ == "__main__":
    serve(act)
