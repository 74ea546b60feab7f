"""The desk's clerk as a program in the sandbox (`spec.agent.sandboxed`): one run is one episode.

It reads its episode from a file, talks to the model, and works with the environment's tools. The episode ends
when it ends, and the environment judges. Standard library only.
"""

from __future__ import annotations

import json
import os

from chat import EpisodeEndedError, Json, converse, post


def main() -> None:
    """Play the episode that HEADWAY_EPISODE_FILE describes."""
    with open(os.environ["HEADWAY_EPISODE_FILE"]) as file:
        episode: Json = json.load(file)
    endpoint = episode["metadata"]["endpoint"]

    def call(name: str, arguments: Json) -> str:
        return str(post(f"{endpoint}/v1/tools/{name}", arguments)["content"])

    try:
        converse(endpoint, episode["messages"], episode["tools"], call)
    except EpisodeEndedError as ended:
        raise SystemExit(str(ended)) from ended


if __name__ == "__main__":
    main()
