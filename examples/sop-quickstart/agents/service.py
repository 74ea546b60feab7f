"""The desk's clerk as a service (`spec.agent.http`), which has its own prompt, tools and reward.

    POST /    starts an episode: answers at once, plays in a thread, and reports to the endpoint in the
    request GET  /    200, for the platform's check before a job begins

`job-http.yaml` deploys it. Standard library only, so that it runs from the environment's image.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from chat import EpisodeEndedError, Json, converse, post
from environment import RefundDesk

from headway_sandbox.environment import Call, Reward, Transcript
from headway_sandbox.tools import ToolError

PORT = int(os.environ.get("PORT", "8080"))


def play(task: Json) -> None:
    """Play one episode, from its prompt to its reward."""
    metadata = task["metadata"]
    endpoint = metadata["endpoint"]
    name = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    try:
        reward = judge(task["instance"], endpoint)
        post(f"{endpoint}/complete-rollout", name | {"Status": "ready"})
        report = name | {"Rewards": [reward.value], "Metrics": reward.metrics}
        post(f"{endpoint}/update-reward", report)
    except EpisodeEndedError as ended:
        sys.stderr.write(f"{name['TrajectoryId']}: {ended}\n")
        failed(endpoint, name, str(ended))


def judge(row: Json, endpoint: str) -> Reward:
    """Play one row with the service's own tools, and return its reward."""
    desk = RefundDesk({})
    first = desk.reset(row, 0)
    tools = {tool.name: tool for tool in desk.tools()}
    calls: list[Call] = []

    def call(name: str, arguments: Json) -> str:
        try:
            if name not in tools:
                raise ToolError(f"there is no tool {name}")
            content, problem = tools[name](arguments)[0], False
        except ToolError as error:
            content, problem = f"error: {error}", True
        calls.append(Call(name, arguments, content, problem))
        return content

    specs = [tool.spec for tool in tools.values()]
    conversation = converse(endpoint, [dict(message) for message in first.messages], specs, call)
    return desk.reward(Transcript(conversation, calls, truncated=False))


def failed(endpoint: str, name: Json, why: str) -> None:
    """Report that the episode failed. If the platform refuses even that, the episode is over."""
    try:
        post(f"{endpoint}/complete-rollout", name | {"Status": "failed", "ErrorMessage": why})
    except EpisodeEndedError as ended:
        sys.stderr.write(f"{name['TrajectoryId']}: {ended}\n")


class Handler(BaseHTTPRequestHandler):
    """Accepts prompts."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"status": "healthy"})

    def do_POST(self) -> None:
        task = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Thread(target=play, args=(task,), daemon=True).start()
        self._answer({"status": "accepted"})

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing: a line for each episode would flood the log."""

    def _answer(self, document: Json) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    # As process 1 of a container, Python would ignore SIGTERM without a handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ThreadingHTTPServer(("", PORT), Handler).serve_forever()
