"""A minimal OpenAI client for the two agents: one tool loop. Standard library only.

With OpenAI's own client, write `OpenAI(base_url=endpoint + "/v1", api_key=...)` and the same loop.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

TIMEOUT_SECONDS = 600
LATER = (429, 502, 503)
"""HTTP statuses after which to retry: the platform's servers are full, or one was lost."""
TRIES = 5

_open = build_opener(ProxyHandler({})).open

Json = dict[str, Any]


class EpisodeEndedError(Exception):
    """The conversation cannot continue."""


class ContextFullError(EpisodeEndedError):
    """The context has no room for another turn. The episode ends with the turns so far."""


def post(url: str, body: Json) -> Json:
    """Post JSON and return the answer's JSON; retry if the platform asks for it.

    Raises:
        EpisodeEndedError: the platform refuses the request permanently.
    """
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for left in reversed(range(TRIES)):
        try:
            with _open(request, timeout=TIMEOUT_SECONDS) as answer:
                found: Json = json.load(answer)
                return found
        except HTTPError as error:
            message = error.read().decode(errors="replace")
            if "context_length_exceeded" in message:
                raise ContextFullError(message) from error
            if error.code not in LATER or not left:
                raise EpisodeEndedError(f"{error.code}: {message}") from error
            time.sleep(float(error.headers.get("Retry-After") or 1))
    raise AssertionError("the last try answers or raises")


def converse(
    endpoint: str,
    messages: list[Json],
    tools: list[Json],
    call: Callable[[str, Json], str],
    max_turns: int = 6,
) -> list[Json]:
    """Let the model call tools until it answers without a tool call. Return the whole conversation.

    Args:
        endpoint: base URL of this episode.
        messages: the first messages of the conversation.
        tools: OpenAI tool specs.
        call: carries out one tool call, and returns the text that the model gets.
        max_turns: turns after which the agent gives up.
    """
    conversation = list(messages)
    for _ in range(max_turns):
        body = {"model": "default", "messages": conversation, "tools": tools}
        try:
            message = post(f"{endpoint}/v1/chat/completions", body)["choices"][0]["message"]
        except ContextFullError:
            break
        conversation.append(message)
        if not message.get("tool_calls"):
            break
        for wanted in message["tool_calls"]:
            function = wanted["function"]
            content = call(function["name"], json.loads(function["arguments"]))
            conversation.append({"role": "tool", "tool_call_id": wanted["id"], "content": content})
    return conversation
