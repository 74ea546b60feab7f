"""Writes a new project from a template, and runs the project's generator, which writes its rows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template as Text
from typing import Final

from headway_api.names import MAX_JOB_NAME
from headway_api.spec.metadata import NAME_PATTERN

NAMED: Final = ("job.yaml", "agent.yaml", "Dockerfile", "README.md")
"""Files in which `$name` and `$folder` are replaced with the project's name and folder."""
GENERATOR: Final = "generate.py"
GENERATE_SECONDS: Final = 60
IGNORE: Final = "__pycache__/\n.headway/\ntiny-model/\n"
"""Content of .gitignore: generated files, and the keys of local jobs."""
UNQUOTED: Final = re.compile(r'[":\\\x00-\x1f]')
"""Characters that a path in job.yaml may not have."""


class Template(StrEnum):
    """The kinds of new projects."""

    REPLAY = "replay"
    STATEFUL = "stateful"
    VERIFIABLE = "verifiable"
    AGENT_HTTP = "agent-http"


class ProjectError(Exception):
    """The project cannot be written this way; the message says what to write instead."""


def name_of(folder: Path, given: str | None) -> str:
    """The name of the project and of its job: `given`, or else a name made from the folder's name.

    Raises:
        ProjectError: the name is not valid for a job.
    """
    name = given if given is not None else re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")
    if len(name) <= MAX_JOB_NAME and re.fullmatch(NAME_PATTERN, name):
        return name
    message = (
        f"--name {name}" if given is not None else f"the folder's name {folder.name!r} cannot be a job's name"
    )
    raise ProjectError(
        f"{message}: write --name with a name of a-z, 0-9 and -, which begins with a letter and has at most "
        f"{MAX_JOB_NAME} characters, such as my-desk"
    )


def texts(template: Template, name: str, folder: Path) -> dict[str, str]:
    """The contents of a new project's files, by file name. `folder` is the project's absolute path."""
    named = {"name": name, "folder": str(folder)}
    source = files("headway_cli") / "templates" / template.value
    return {".gitignore": IGNORE} | {each.name: _text(each, named) for each in _sources(source)}


def _sources(folder: Traversable) -> list[Traversable]:
    """The files of a template, without folders such as `__pycache__`."""
    return sorted((each for each in folder.iterdir() if each.is_file()), key=lambda each: each.name)


def _text(source: Traversable, named: Mapping[str, str]) -> str:
    text = source.read_text(encoding="utf-8")
    # `safe_substitute` leaves other text with a dollar sign unchanged, such as a Dockerfile's ${BASE}.
    return Text(text).safe_substitute(named) if source.name in NAMED else text


def write(folder: Path, template: Template, given: str | None = None) -> list[Path]:
    """Write a new project into a folder that is empty or does not exist. Return its files.

    Args:
        folder: the project's folder.
        template: the template.
        given: name of the project; None for a name made from the folder's name.

    Raises:
        ProjectError: the folder has files already, or cannot be written.
    """
    folder = folder.absolute()
    made = texts(template, name_of(folder, given), folder)
    try:
        _require_empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (folder / name).write_text(text, encoding="utf-8")
        _generate(folder)
    except OSError as error:
        raise ProjectError(f"{error.filename or folder}: {error.strerror}: write another folder") from error
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _require_empty(folder: Path) -> None:
    if UNQUOTED.search(str(folder)):
        raise ProjectError(f"{folder}: write a folder whose path has no quotes, colons or backslashes")
    if folder.exists() and not folder.is_dir():
        raise ProjectError(f"{folder} is a file: write the name of a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise ProjectError(f"{folder} is not empty: write the name of a new folder, such as {folder}/my-desk")


def _generate(folder: Path) -> None:
    """Run the project's generator, which writes the project's rows."""
    command = [sys.executable, "-B", GENERATOR]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=GENERATE_SECONDS)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ProjectError(f"{folder / GENERATOR} failed: {last}; correct it, and run it in its folder")
