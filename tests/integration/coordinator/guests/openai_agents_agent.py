"""An agent of OpenAI's agents SDK. `row.style`: `run` or `streamed`; `row.api`: `chat` or `responses`.

By default the SDK speaks Responses. With `row.chained` it names the answer before instead of sending all of
the conversation.
"""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from service import serve


@function_tool
def look_up(key: str) -> str:
    """Look a thing up.

    Args:
        key: Name of the thing.
    """
    return f"{key} is gold"


async def act(payload: dict[str, Any]) -> Any:
    metadata = payload["metadata"]
    told = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    async with AsyncOpenAI(base_url=f"{metadata['endpoint']}/v1", api_key="unused") as client:
        instance = payload["instance"]
        responses = instance.get("api") == "responses"
        kind = OpenAIResponsesModel if responses else OpenAIChatCompletionsModel
        more = {"auto_previous_response_id": True} if instance.get("chained") else {}
        agent = Agent(
            name="looker",
            instructions="Use the tool, then answer.",
            model=kind(model="default", openai_client=client),
            model_settings=ModelSettings(include_usage=True, parallel_tool_calls=True),
            tools=[look_up],
        )
        if instance["style"] == "streamed":
            result = Runner.run_streamed(agent, payload["prompt"], **more)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, payload["prompt"], **more)
        answer = str(result.final_output)
        base = metadata["endpoint"]
        await client.post(f"{base}/complete-rollout", body=told | {"Status": "ready"}, cast_to=object)
        reward = told | {"Rewards": [1.0 if "gold" in answer else 0.0]}
        await client.post(f"{base}/update-reward", body=reward, cast_to=object)
    return {"answer": answer}


if __name__ == "__main__":
    set_tracing_disabled(True)
    serve(act)
