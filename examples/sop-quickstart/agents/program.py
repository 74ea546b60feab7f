"""The desk's clerk as a program in the sandbox (`spec.agent.sandboxed`): one run is one episode.

The program reads its episode from a file, talks to the model, and calls the environment's tools. When the
program ends, the episode ends, and the environment computes the reward. Standard library only.
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
