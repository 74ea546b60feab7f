"""An agent of the OpenAI SDK: the usual tool loop, written by hand.

`row.style`: `create`, `events` (a stream read by hand), `stream` (the SDK's helper) or `parse`, each with
`sync` or not. The other fields of the row:

- `choices`: the turns' tool_choice.
- `patience`: the client's timeout in seconds.
- `wait`, `between`: how long the agent sleeps before its first turn, and before its second.
- `crowd`: how many first turns it requests at once, each in its own conversation.
- `retries`: the client's max_retries.
- `more`: what the user says after the first answer.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from service import serve

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Look a thing up.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string"}},
                "required": ["key"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
    for name in ("look_up", "find")
]


def run_tool(call: Any) -> dict[str, Any]:
    key = json.loads(call.function.arguments)["key"]
    return {"role": "tool", "tool_call_id": call.id, "content": f"{key} is gold"}


def joined(chunks: list[Any]) -> dict[str, Any]:
    """A streamed message, joined from its chunks by hand."""
    text, calls = "", {}
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += part.id or ""
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    assert chunks[-1].usage.completion_tokens > 0
    made = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in calls.values()
    ]
    return {"role": "assistant", "content": text or None} | ({"tool_calls": made} if made else {})


EVENTS = {"stream": True, "stream_options": {"include_usage": True}}


def ask(client: OpenAI, style: str, body: dict[str, Any]) -> Any:
    """One turn, with the blocking client."""
    completions = client.chat.completions
    if style == "events":
        return joined(list(completions.create(**body, **EVENTS)))
    if style == "stream":
        with completions.stream(**body) as events:
            for _ in events:
                pass
            return events.get_final_completion().choices[0].message
    found = (completions.parse if style == "parse" else completions.create)(**body)
    return found.choices[0].message


async def ask_async(client: AsyncOpenAI, style: str, body: dict[str, Any]) -> Any:
    """One turn, with the asynchronous client."""
    completions = client.chat.completions
    if style == "events":
        return joined([chunk async for chunk in await completions.create(**body, **EVENTS)])
    if style == "stream":
        async with completions.stream(**body) as events:
            async for _ in events:
                pass
            return (await events.get_final_completion()).choices[0].message
    found = await (completions.parse if style == "parse" else completions.create)(**body)
    return found.choices[0].message


async def play(payload: dict[str, Any]) -> str:
    instance, endpoint = payload["instance"], payload["metadata"]["endpoint"]
    style, choices = instance.get("style", "create"), list(instance.get("choices", []))
    more = list(instance.get("more", []))
    settings = {
        "base_url": f"{endpoint}/v1",
        "api_key": endpoint.rpartition("/")[2],
        "timeout": instance.get("patience", 30.0),
        "max_retries": instance.get("retries", 2),
    }
    client, messages = AsyncOpenAI(**settings), [{"role": "user", "content": payload["prompt"]}]
    await asyncio.sleep(instance.get("wait", 0.0))
    crowd = [
        client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": f"Helper {n}, look it up."}]
        )
        for n in range(instance.get("crowd", 0))
    ]
    await asyncio.gather(*crowd)
    for turn in range(8):
        if turn == 1:
            await asyncio.sleep(instance.get("between", 0.0))
        body: dict[str, Any] = {"model": "default", "messages": messages, "tools": TOOLS}
        if choices:
            body["tool_choice"] = choices[min(turn, len(choices) - 1)]
        if instance.get("sync"):
            message = await asyncio.to_thread(ask, OpenAI(**settings), style, body)
        else:
            message = await ask_async(client, style, body)
        if isinstance(message, dict):
            messages.append(message)
            message = openai.types.chat.ChatCompletionMessage.model_validate(message)
        else:
            messages.append(message)  # the SDK's own object, with whatever fields it has
        if message.tool_calls:
            messages += [run_tool(call) for call in message.tool_calls]
        elif more:
            messages.append({"role": "user", "content": more.pop(0)})
        else:
            return message.content or ""
    return ""


async def act(payload: dict[str, Any]) -> Any:
    metadata = payload["metadata"]
    ids = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    # The SDK's own HTTP client also makes MTRL's two calls.
    async with AsyncOpenAI(base_url=metadata["endpoint"], api_key="unused", max_retries=0) as client:
        try:
            answer = await play(payload)
        except openai.APIError as error:
            body = ids | {"Status": "failed", "ErrorMessage": str(error)}
            await client.post("/complete-rollout", body=body, cast_to=object)
            raise
        await client.post("/complete-rollout", body=ids | {"Status": "ready"}, cast_to=object)
        reward = ids | {"Rewards": [1.0 if "gold" in answer else 0.0]}
        await client.post("/update-reward", body=reward, cast_to=object)
    return {"answer": answer}


if __name__ == "__main__":
    serve(act)
