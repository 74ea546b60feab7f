"""A small job over scripted servers. Its model calls a tool and then answers, or says what a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from faulty_servers import Scripted
from role_keys import TO_COORDINATOR
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.config import JobConfig

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"key": "x"}}\n</tool_call><|im_end|>'
ANSWER = "It is gold.<|im_end|>"

Speak = Callable[[str], tuple[str, str]]
"""Maps a prompt to what the model says and vLLM's finish reason."""


def job(folder: Path, **fields: Any) -> JobConfig:
    """Return a job of two steps of two groups, on a folder with data and a tokenizer.

    `fields` replace fields of its spec.
    """
    model = tokenizer(folder / "model", QWEN3_TEMPLATE)
    model.save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    for name in ("train", "validation"):
        rows = [{"prompt": f"{name} {i}", "task": "odd" if i % 2 else "even"} for i in range(4)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "model": {"base": f"file://{folder}/model"},
        "data": {name: {"uri": f"file://{folder}/{name}.jsonl"} for name in ("train", "validation")},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "output": {"uri": f"file://{folder}/out"},
        "algorithm": {"batchSize": 2, "groupSize": 2},
        "schedule": {"maxSteps": 2},
        "rollout": {"sampling": {"maxTokens": 40}, "timeoutSeconds": 20},
        "agent": {"builtin": {"maxTurns": 4}},
        "evaluation": {"passK": [1]},
        "preflight": {"episodes": 0},
        **fields,
    }
    return JobConfig.model_validate({"name": "job", "namespace": "ns", "uid": "uid", "spec": spec})


def call_then_answer(prompt: str) -> tuple[str, str]:
    """Call a tool in the first turn; answer once the tool has replied."""
    return (ANSWER if "tool_response" in prompt else CALL), "stop"


def speaking_engine(folder: Path, speak: Speak = call_then_answer) -> Scripted:
    """Return a scripted vLLM whose model says what `speak` returns."""
    tok = tokenizer(folder / "engine", QWEN3_TEMPLATE)

    def generate(body: Any) -> Any:
        text, finish = speak(tok.decode(body["token_ids"]))
        tokens = tok.encode(text, add_special_tokens=False)
        content = [{"token_id": token, "logprob": -0.5} for token in tokens]
        choice = {"finish_reason": finish, "token_ids": tokens, "logprobs": {"content": content}}
        return {"choices": [choice]}

    async def metrics(request: web.Request) -> web.StreamResponse:
        names = ("kv_cache_usage_perc", "num_preemptions_total", "num_requests_waiting")
        return web.Response(text="".join(f'vllm:{name}{{engine="0"}} 0.5\n' for name in names))

    return Scripted({"POST /inference/v1/generate": generate}, {"GET /metrics": metrics})


async def until_ready(running: asyncio.Task[None], port: int) -> None:
    """Return once the coordinator on that port answers its learner. Raise its error if it ends before."""
    headers = {"Authorization": f"Bearer {TO_COORDINATOR}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        while not running.done():
            try:
                async with http.get(f"http://127.0.0.1:{port}/v1/batch?step=0&wait=0") as answer:
                    if answer.status != 503:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.02)
    running.result()
