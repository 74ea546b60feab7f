"""What the server and the program of a suite's sandbox leave for each other, beside the episode's file."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENV_EPISODE_FILE = "HEADWAY_EPISODE_FILE"
EPISODE_FILE = "/run/headway/episode.json"
"""Equal to `headway_api.names.EPISODE_FILE`."""
ASKED, FOUND, ORDER = ".sample", ".scores", ".order"
"""Behind the episode file's name: what is to be run, what it came to, and a task's samples as digests."""


def episode_file() -> str:
    """Where the episode's own file lies or will lie."""
    return os.environ.get(ENV_EPISODE_FILE, EPISODE_FILE)


def write(ending: str, document: dict[str, Any]) -> None:
    """Leave a document."""
    path = episode_file() + ending
    with open(f"{path}.new", "w") as file:
        json.dump(document, file)
    os.replace(f"{path}.new", path)


def read(ending: str) -> dict[str, Any] | None:
    """What was left; None where nothing was."""
    try:
        with open(episode_file() + ending) as file:
            found: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    return found
