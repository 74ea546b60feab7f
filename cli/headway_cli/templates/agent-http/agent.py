"""The agent as a service (`spec.agent.http`): the loop is yours, the model and the tools are the platform's.

    POST /    takes a prompt, answers at once, and plays the episode in a thread. The agent then reports the
              end of the episode to the endpoint that the prompt names.
    GET  /    answers 200. The platform asks before a job begins.

    python agent.py        # listens on PORT (8080)

It uses only the standard library, so that it runs from the environment's image. With OpenAI's client, a turn
is `OpenAI(base_url=endpoint + "/v1", api_key="any").chat.completions.create(...)`. The rest is the same.
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
"""Status codes after which the agent should try again: the platform's servers are full, or one was lost."""
TRIES = 5
Json = dict[str, Any]

_open = build_opener(ProxyHandler({})).open


class EpisodeEndedError(Exception):
    """The episode cannot continue."""


class ContextFullError(EpisodeEndedError):
    """The episode has reached its maximum tokens. The platform judges the conversation so far."""


def ask(url: str, body: Json | None = None) -> Json:
    """Send a GET request, or POST `body` as JSON. Return the response's JSON.

    A request is repeated if the platform's status code asks for that.

    Raises:
        ContextFullError: the episode has reached its maximum tokens.
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
    """Let the model call tools until it answers. Return the whole conversation.

    This function is yours to change: you may plan, remember, or ask the model again. But only append to the
    messages. Each change of an earlier message makes another training row (docs/agents.md).
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
    """Play one episode, from its prompt to the report of its end."""
    about = task["metadata"]
    name = {"JobArn": about["jobArn"], "TrajectoryId": about["rolloutId"]}
    status: Json = {"Status": "ready"}
    try:
        converse(about["endpoint"], task["instance"])
    except Exception as error:  # report every error, because the platform waits for the episode's end
        sys.stderr.write(f"{about['rolloutId']}: {type(error).__name__}: {error}\n")
        status = {"Status": "failed", "ErrorMessage": f"{type(error).__name__}: {error}"[:1000]}
    try:
        ask(f"{about['endpoint']}/complete-rollout", name | status)
    except EpisodeEndedError as ended:
        sys.stderr.write(f"{about['rolloutId']}: {ended}\n")


class Handler(BaseHTTPRequestHandler):
    """Accepts prompts, and plays an episode for each."""

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
