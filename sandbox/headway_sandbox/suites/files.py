"""Files that the server and the program of a suite's sandbox exchange, next to the episode's file."""

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
"""Suffixes of the episode file's name: the sample to run, its scores, and digests of a task's samples."""


def episode_file() -> str:
    """Path of the episode's own file, which may not exist yet."""
    return os.environ.get(ENV_EPISODE_FILE, EPISODE_FILE)


def write(ending: str, document: dict[str, Any]) -> None:
    """Write a document to the file with this suffix."""
    path = episode_file() + ending
    with open(f"{path}.new", "w") as file:
        json.dump(document, file)
    os.replace(f"{path}.new", path)


def read(ending: str) -> dict[str, Any] | None:
    """Read the document in the file with this suffix; None if there is none."""
    try:
        with open(episode_file() + ending) as file:
            found: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    return found
