"""An agent of Microsoft's Agent Framework: `row.api` is `chat` or `responses` (the framework's default).

With `row.stream` its turns are streamed. With `row.shaped` it asks for an answer that follows a schema.
`row.more` is what the user says after the first answer.
"""

from __future__ import annotations

from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from pydantic import BaseModel
from service import reporting, serve


class Answer(BaseModel):
    """The metal that a thing is made of."""

    metal: str


def look_up(key: str) -> str:
    """Look a thing up."""
    return f"{key} is gold"


async def play(payload: dict[str, Any]) -> str:
    instance = payload["instance"]
    kind = OpenAIChatCompletionClient if instance["api"] == "chat" else OpenAIChatClient
    client = kind(model="default", base_url=f"{payload['metadata']['endpoint']}/v1", api_key="unused")
    agent = Agent(client, "Use the tool, then answer.", tools=[look_up])
    session = agent.create_session()
    options: dict[str, Any] = {"response_format": Answer} if instance.get("shaped") else {}
    answer = ""
    for words in [payload["prompt"], *instance.get("more", [])]:
        if instance.get("stream"):
            stream = agent.run(words, stream=True, session=session, options=options)
            async for _ in stream:
                pass
            found = await stream.get_final_response()
        else:
            found = await agent.run(words, session=session, options=options)
        answer = found.value.metal if instance.get("shaped") else found.text
    return str(answer)


if __name__ == "__main__":
    serve(reporting(play))
