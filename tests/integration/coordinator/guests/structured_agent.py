"""Agents that request an answer as a pydantic model through OpenAI's packages, and one of plain completions.

`row.style`: `chat`, `responses` (each by the client's `parse`), `agents` (the agents SDK's `output_type`) or
`text` (completions: a ReAct loop of two turns).
"""

from __future__ import annotations

from typing import Any, Literal

from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from service import serve


class Part(BaseModel):
    """One of several."""

    name: str = Field(description="What it is called")
    grams: int | None = None


class Found(BaseModel):
    """What was found."""

    metal: Literal["gold", "lead"]
    parts: list[Part] = []


async def answered(client: AsyncOpenAI, style: str, prompt: str) -> str:
    messages: Any = [{"role": "user", "content": prompt}]
    if style == "chat":
        completion = await client.chat.completions.parse(
            model="default", messages=messages, response_format=Found
        )
        return str(completion.choices[0].message.parsed)
    if style == "responses":
        found = await client.responses.parse(model="default", input=messages, text_format=Found)
        return str(found.output_parsed)
    if style == "agents":
        model = OpenAIResponsesModel(model="default", openai_client=client)
        agent = Agent(name="finder", instructions="Answer.", model=model, output_type=Found)
        return str((await Runner.run(agent, prompt)).final_output_as(Found, raise_if_incorrect_type=True))
    text = f"{prompt}\nThought:"
    for turn in range(2):
        found = await client.completions.create(
            model="default", prompt=text, stop=["Observation:"], logprobs=0
        )
        text += found.choices[0].text
        if turn == 0:
            text += "Observation: it is yellow.\nThought:"
    return text


async def act(payload: dict[str, Any]) -> Any:
    metadata = payload["metadata"]
    ids = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    base = metadata["endpoint"]
    async with AsyncOpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0) as client:
        answer = await answered(client, payload["instance"]["style"], payload["prompt"])
        await client.post(f"{base}/complete-rollout", body=ids | {"Status": "ready"}, cast_to=object)
        reward = ids | {"Rewards": [1.0 if "gold" in answer else 0.0]}
        await client.post(f"{base}/update-reward", body=reward, cast_to=object)
    return {"answer": answer}


if __name__ == "__main__":
    set_tracing_disabled(True)
    serve(act)
