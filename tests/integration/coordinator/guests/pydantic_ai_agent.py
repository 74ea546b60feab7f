"""Agents of Pydantic AI: `row.output` is `text`, `tool`, `native` or `prompted`; with `row.stream` streamed.

`row.more` is what the user says after the first answer. With `row.alone` the agent has no tools.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from service import reporting, serve


class Answer(BaseModel):
    """The metal that a thing is made of."""

    metal: str


OUTPUTS: dict[str, Any] = {
    "text": str,
    "tool": ToolOutput(Answer),
    "native": NativeOutput(Answer),
    "prompted": PromptedOutput(Answer),
}


def look_up(key: str) -> str:
    """Look a thing up."""
    return f"{key} is gold"


async def play(payload: dict[str, Any]) -> str:
    instance = payload["instance"]
    provider = OpenAIProvider(base_url=f"{payload['metadata']['endpoint']}/v1", api_key="unused")
    agent: Any = Agent(
        OpenAIChatModel("default", provider=provider),
        instructions="Use the tool, then answer.",
        tools=[] if instance.get("alone") else [look_up],
        output_type=OUTPUTS[instance.get("output", "text")],
    )
    history: list[Any] = []
    output: Any = ""
    for words in [payload["prompt"], *instance.get("more", [])]:
        if instance.get("stream"):
            async with agent.run_stream(words, message_history=history) as result:
                output = await result.get_output()
                history = result.all_messages()
        else:
            result = await agent.run(words, message_history=history)
            output, history = result.output, result.all_messages()
    return output.metal if isinstance(output, Answer) else str(output)


if __name__ == "__main__":
    serve(reporting(play))
