"""An agent of Anthropic's SDK: a tool loop, and a second user message if the row has one.

`row.style`: `create`, `events` (a stream read by hand) or `stream` (the SDK's helper), each with `sync` or
not. `row.more` is what the user says after the first answer. `row.thinking` is the request's `thinking`, and
`row.stop` its `stop_sequences`. With `row.count` every prompt is counted before it is sent.
"""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from service import serve

TOOLS = [
    {
        "name": "look_up",
        "description": "Look a thing up.",
        "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    }
]


def ask(client: Anthropic, style: str, body: dict[str, Any]) -> Any:
    """One turn, with the blocking client."""
    if style == "create":
        return client.messages.create(**body)
    if style == "events":
        with client.messages.create(**body, stream=True) as events:
            kinds = [event.type for event in events]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop"), kinds
        return client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        streamed = "".join(stream.text_stream)
        found = stream.get_final_message()
    assert streamed == "".join(block.text for block in found.content if block.type == "text")
    return found


async def ask_async(client: AsyncAnthropic, style: str, body: dict[str, Any]) -> Any:
    """One turn, with the asynchronous client."""
    if style == "create":
        return await client.messages.create(**body)
    async with client.messages.stream(**body) as stream:
        streamed = "".join([text async for text in stream.text_stream])
        found = await stream.get_final_message()
    assert streamed == "".join(block.text for block in found.content if block.type == "text")
    return found


async def play(payload: dict[str, Any]) -> str:
    instance, endpoint = payload["instance"], payload["metadata"]["endpoint"]
    settings = {"base_url": endpoint, "api_key": "unused", "timeout": 30.0}
    style, more = instance.get("style", "create"), list(instance.get("more", []))
    client = AsyncAnthropic(**settings)
    messages: list[Any] = [{"role": "user", "content": payload["prompt"]}]
    for _ in range(8):
        body: dict[str, Any] = {
            "model": "default",
            "max_tokens": 100,
            "system": "Use the tool, then answer.",
            "messages": messages,
            "tools": TOOLS,
        }
        counted = None
        if instance.get("count"):
            counted = await client.messages.count_tokens(
                **{name: value for name, value in body.items() if name != "max_tokens"}
            )
        body |= {"stop_sequences": instance["stop"]} if "stop" in instance else {}
        body |= {"thinking": instance["thinking"]} if "thinking" in instance else {}
        if instance.get("sync"):
            message = await asyncio.to_thread(ask, Anthropic(**settings), style, body)
        else:
            message = await ask_async(client, style, body)
        usage = message.usage
        assert counted is None or counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
        messages.append({"role": "assistant", "content": message.content})  # the SDK's own objects
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"{block.input['key']} is gold"}
            for block in message.content
            if block.type == "tool_use"
        ]
        if results:
            assert message.stop_reason == "tool_use"
            messages.append({"role": "user", "content": results})
        elif more:
            messages.append({"role": "user", "content": more.pop(0)})
        else:
            return "".join(block.text for block in message.content if block.type == "text")
    return ""


async def act(payload: dict[str, Any]) -> Any:
    metadata = payload["metadata"]
    ids = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    # The SDK's own HTTP client also makes MTRL's two calls.
    async with AsyncAnthropic(base_url=metadata["endpoint"], api_key="unused", max_retries=0) as client:
        try:
            answer = await play(payload)
        except Exception as error:
            body = ids | {"Status": "failed", "ErrorMessage": f"{type(error).__name__}: {error}"}
            await client.post("/complete-rollout", body=body, cast_to=object)
            raise
        await client.post("/complete-rollout", body=ids | {"Status": "ready"}, cast_to=object)
        reward = ids | {"Rewards": [1.0 if "gold" in answer else 0.0]}
        await client.post("/update-reward", body=reward, cast_to=object)
    return {"answer": answer}


if __name__ == "__main__":
    serve(act)
