"""An agent that uses the Responses API of OpenAI's client, over two user messages.

`row.style`: `create` or `stream`. With `row.chained` it names the previous response; otherwise it sends all
items.
"""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI
from service import serve

INSTRUCTIONS = "Use the tool, then answer."
TOOLS = [
    {
        "type": "function",
        "name": "look_up",
        "description": "Look a thing up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string"}},
            "required": ["key"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]


async def ask(client: AsyncOpenAI, style: str, body: dict[str, Any]) -> Any:
    """One turn."""
    if style == "create":
        return await client.responses.create(**body)
    async with client.responses.stream(**body) as stream:
        streamed = "".join(
            [event.delta async for event in stream if event.type == "response.output_text.delta"]
        )
        found = await stream.get_final_response()
    assert streamed == found.output_text
    return found


async def play(payload: dict[str, Any], client: AsyncOpenAI) -> str:
    instance, more = payload["instance"], ["Are you sure?"]
    chained = instance.get("chained", False)
    items: list[Any] = [{"role": "user", "content": payload["prompt"]}]
    before: dict[str, Any] = {}
    for _ in range(8):
        body = {"model": "default", "instructions": INSTRUCTIONS, "input": items, "tools": TOOLS} | before
        response = await ask(client, instance["style"], body)
        assert response.status == "completed", response
        before = {"previous_response_id": response.id} if chained else {}
        items = [] if chained else [*items, *(item.model_dump(exclude_none=True) for item in response.output)]
        results = [
            {
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": f"{json.loads(item.arguments)['key']} is gold",
            }
            for item in response.output
            if item.type == "function_call"
        ]
        if results:
            items += results
        elif more:
            items.append({"role": "user", "content": more.pop(0)})
        else:
            return str(response.output_text)
    return ""


async def act(payload: dict[str, Any]) -> Any:
    metadata = payload["metadata"]
    ids = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    base = metadata["endpoint"]
    async with AsyncOpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0) as client:
        try:
            answer = await play(payload, client)
        except Exception as error:
            body = ids | {"Status": "failed", "ErrorMessage": f"{type(error).__name__}: {error}"}
            await client.post(f"{base}/complete-rollout", body=body, cast_to=object)
            raise
        await client.post(f"{base}/complete-rollout", body=ids | {"Status": "ready"}, cast_to=object)
        reward = ids | {"Rewards": [1.0 if "gold" in answer else 0.0]}
        await client.post(f"{base}/update-reward", body=reward, cast_to=object)
    return {"answer": answer}


if __name__ == "__main__":
    serve(act)
