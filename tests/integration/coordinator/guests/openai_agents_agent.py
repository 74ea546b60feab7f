"""An agent of OpenAI's agents SDK. `row.style`: `run` or `streamed`; `row.api`: `chat` or `responses`.

By default the SDK uses the Responses API. With `row.own_defaults` the agent has the SDK's own model and
settings. With `row.chained` it names the previous response instead of sending the whole conversation.
`row.more` is what the user says after the first answer. With `row.session` the history comes from a session,
otherwise from the last result.
"""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from service import reporting, serve


@function_tool
def look_up(key: str) -> str:
    """Look a thing up.

    Args:
        key: Name of the thing.
    """
    return f"{key} is gold"


async def a_run(agent: Agent, streamed: bool, inputs: Any, **more: Any) -> Any:
    """Run the agent from a user message to its answer."""
    if not streamed:
        return await Runner.run(agent, inputs, **more)
    result = Runner.run_streamed(agent, inputs, **more)
    async for _ in result.stream_events():
        pass
    return result


async def play(payload: dict[str, Any]) -> str:
    instance, metadata = payload["instance"], payload["metadata"]
    kind = OpenAIResponsesModel if instance.get("api") == "responses" else OpenAIChatCompletionsModel
    more: dict[str, Any] = {"auto_previous_response_id": True} if instance.get("chained") else {}
    if instance.get("session"):
        more["session"] = SQLiteSession(metadata["rolloutId"])
    async with AsyncOpenAI(base_url=f"{metadata['endpoint']}/v1", api_key="unused") as client:
        settings: dict[str, Any] = {
            "model": kind(model="default", openai_client=client),
            "model_settings": ModelSettings(include_usage=True, parallel_tool_calls=True),
        }
        if instance.get("own_defaults"):  # the SDK's own model and settings
            set_default_openai_client(client, use_for_tracing=False)
            settings = {}
        instructions = "Use the tool, then answer."
        agent = Agent(name="looker", instructions=instructions, tools=[look_up], **settings)
        streamed = instance["style"] == "streamed"
        result = await a_run(agent, streamed, payload["prompt"], **more)
        for words in instance.get("more", []):
            inputs: Any = words
            if instance.get("chained"):
                more["previous_response_id"] = result.last_response_id
            elif "session" not in more:
                inputs = [*result.to_input_list(), {"role": "user", "content": words}]
            result = await a_run(agent, streamed, inputs, **more)
    return str(result.final_output)


if __name__ == "__main__":
    set_tracing_disabled(True)
    serve(reporting(play))
