"""A short agent: OpenAI's tool loop over the environment's own tools, with only the standard library.

As a program it is a sandboxed agent; a service may run `play` as well. The program's argument is a mood,
which says how it misbehaves. It may `crash` after its first turn, or `linger` there for ever. Or it may
`shrug`: if the platform refuses a request, the agent ends without an error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from headway_api.document import Json

TURNS = 8
_open = build_opener(ProxyHandler({})).open


class PlatformRefusedError(Exception):
    """The platform refused a request."""


def ask(url: str, body: Json | None = None) -> Json:
    """Send a GET, or POST `body`; return the JSON of the answer."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with _open(Request(url, data, {"Content-Type": "application/json"}), timeout=60) as answer:
            found: Json = json.load(answer)
            return found
    except HTTPError as error:
        raise PlatformRefusedError(f"{error.code} {error.read().decode()}") from error


def play(endpoint: str, messages: list[Json], mood: str | None) -> None:
    """Ask the model for turns, and run the tools that it calls, until it calls none."""
    try:
        _play(endpoint, list(messages), mood)
    except PlatformRefusedError:
        if mood != "shrug":
            raise


def _play(endpoint: str, messages: list[Json], mood: str | None) -> None:
    tools = ask(f"{endpoint}/v1/tools")["tools"]
    for _ in range(TURNS):
        body = {"model": "default", "messages": messages, "tools": tools}
        choice = ask(f"{endpoint}/v1/chat/completions", body)["choices"][0]
        messages.append(choice["message"])
        if choice["finish_reason"] == "length" or not choice["message"].get("tool_calls"):
            return
        if mood == "crash":
            raise ValueError("the agent lost its mind")
        if mood == "linger":
            time.sleep(600)
        for call in choice["message"]["tool_calls"]:
            function = call["function"]
            reply = ask(f"{endpoint}/v1/tools/{function['name']}", json.loads(function["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": reply["content"]})


def main() -> None:
    episode = json.loads(Path(os.environ["HEADWAY_EPISODE_FILE"]).read_text())
    (Path(os.environ["TMPDIR"]) / "pid").write_text(str(os.getpid()))
    # The client's URL of the endpoint, without the suffix that only the client needs.
    endpoint = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    play(endpoint, episode["messages"], sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()
