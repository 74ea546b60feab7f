"""A tool loop of LiteLLM's. `row.provider` is the protocol: `openai`, `hosted_vllm` or `anthropic`.

With `row.stream` the turns are streamed, and LiteLLM joins their chunks. `row.more` is what the user says
after the first answer, and `row.ask` has further fields of each request.
"""

from __future__ import annotations

import json
from typing import Any

import litellm
from service import reporting, serve

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a thing up.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
    }
]


async def ask(stream: bool, **request: Any) -> Any:
    if not stream:
        return await litellm.acompletion(**request)
    pieces = [piece async for piece in await litellm.acompletion(**request, stream=True)]
    return litellm.stream_chunk_builder(pieces, messages=request["messages"])


async def play(payload: dict[str, Any]) -> str:
    instance, endpoint = payload["instance"], payload["metadata"]["endpoint"]
    provider, more = instance["provider"], list(instance.get("more", []))
    request = {
        "model": f"{provider}/default",
        "api_base": endpoint if provider == "anthropic" else f"{endpoint}/v1",
        "api_key": "unused",
        "tools": TOOLS,
        "timeout": 30.0,
    } | instance.get("ask", {})
    messages: list[Any] = [
        {"role": "system", "content": "Use the tool, then answer."},
        {"role": "user", "content": payload["prompt"]},
    ]
    for _ in range(8):
        found = await ask(bool(instance.get("stream")), messages=messages, **request)
        message = found.choices[0].message
        messages.append(message)  # LiteLLM's own object
        for call in message.tool_calls or []:
            result = f"{json.loads(call.function.arguments)['key']} is gold"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if message.tool_calls:
            continue
        if not more:
            return str(message.content)
        messages.append({"role": "user", "content": more.pop(0)})
    return ""


if __name__ == "__main__":
    serve(reporting(play))
