"""The agent as a service (`spec.agent.http`): its loop is yours, its model and its tools are the platform's.

    POST /    a prompt; answered at once, played in a thread, and reported to the endpoint that came with it
    GET  /    200: the platform looks before a job begins

    python agent.py        # listens at PORT (8080)

Standard library only, so that it runs from the environment's image. With OpenAI's client a turn is
`OpenAI(base_url=endpoint + "/v1", api_key="any").chat.completions.create(...)`. The rest is the same.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from environment import opening

PORT = int(os.environ.get("PORT", "8080"))
MAX_TURNS = 4
"""Turns after which the agent gives up: two look-ups and the answer, and one to spare."""
TIMEOUT_SECONDS = 600
LATER = (429, 502, 503)
"""The platform asks the agent to try again: its servers are full, or one was lost."""
TRIES = 5
Json = dict[str, Any]

_open = build_opener(ProxyHandler({})).open


class EpisodeEndedError(Exception):
    """The episode cannot continue."""


class ContextFullError(EpisodeEndedError):
    """The context or the tokens of the episode are used up: the conversation so far counts."""


def ask(url: str, body: Json | None = None) -> Json:
    """GET, or POST `body` as JSON. Return the answer's JSON. Try again if the platform asks for it.

    Raises:
        EpisodeEndedError: the platform refuses the request permanently.
    """
    data = None if body is None else json.dumps(body).encode()
    for left in reversed(range(TRIES)):
        try:
            with _open(
                Request(url, data, {"Content-Type": "application/json"}), timeout=TIMEOUT_SECONDS
            ) as answer:
                found: Json = json.loads(answer.read() or b"{}")
                return found
        except HTTPError as error:
            message = error.read().decode(errors="replace")
            if "context_length_exceeded" in message or "episode_token_limit_reached" in message:
                raise ContextFullError(message) from error
            if error.code not in LATER or not left:
                raise EpisodeEndedError(f"{error.code}: {message}") from error
            time.sleep(float(error.headers.get("Retry-After") or 1))
    raise AssertionError("the last try answers or raises")


def converse(endpoint: str, row: Json) -> list[Json]:
    """Let the model speak and call tools until it answers. Return the whole conversation.

    This part is yours: plan, remember, ask again. Only append to the messages. Otherwise the platform makes a
    training row of its own for each change (docs/agents.md).
    """
    messages = [dict(message) for message in opening(row)]
    tools = ask(f"{endpoint}/v1/tools")["tools"]
    for _ in range(MAX_TURNS):
        body = {"model": "default", "messages": messages, "tools": tools}
        try:
            answer = ask(f"{endpoint}/v1/chat/completions", body)["choices"][0]["message"]
        except ContextFullError:
            break
        messages.append(answer)
        if not answer.get("tool_calls"):
            break
        for call in answer["tool_calls"]:
            function = call["function"]
            reply = ask(
                f"{endpoint}/v1/tools/{quote(function['name'], safe='')}", json.loads(function["arguments"])
            )
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": reply["content"]})
            if reply.get("done"):
                return messages
    return messages


def play(task: Json) -> None:
    """One episode, from its prompt to its end."""
    about = task["metadata"]
    name = {"JobArn": about["jobArn"], "TrajectoryId": about["rolloutId"]}
    status: Json = {"Status": "ready"}
    try:
        converse(about["endpoint"], task["instance"])
    except Exception as error:  # report whatever ends the episode, or the platform would wait
        sys.stderr.write(f"{about['rolloutId']}: {type(error).__name__}: {error}\n")
        status = {"Status": "failed", "ErrorMessage": f"{type(error).__name__}: {error}"[:1000]}
    try:
        ask(f"{about['endpoint']}/complete-rollout", name | status)
    except EpisodeEndedError as ended:
        sys.stderr.write(f"{about['rolloutId']}: {ended}\n")


class Handler(BaseHTTPRequestHandler):
    """Takes prompts."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"status": "healthy"})

    def do_POST(self) -> None:
        task = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Thread(target=play, args=(task,), daemon=True).start()
        self._answer({"status": "accepted"})

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line for every episode would be too much."""

    def _answer(self, document: Json) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    # Process 1 of a container does not end at SIGTERM by itself.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ThreadingHTTPServer(("", PORT), Handler).serve_forever()
