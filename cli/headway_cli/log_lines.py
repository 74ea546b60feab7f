"""Reads the lines of a job's logs, from a local job's folder or from the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from headway_api import names
from headway_api.stored import read_each
from headway_cli.stored_run import StoredRun, readable

LOG: Final = ".log"
LOOK_SECONDS: Final = 0.5
"""Seconds between two polls of a followed log."""


class Role(StrEnum):
    """Role of a process."""

    COORDINATOR = names.COORDINATOR
    LEARNER = names.LEARNER
    ROLLOUT = names.ROLLOUT
    SANDBOX = names.SANDBOX
    BROKER = names.BROKER
    JUDGE = names.JUDGE
    AGENT = "agent"


class Line(NamedTuple):
    """One line of a log, and the pod that wrote it."""

    writer: str
    text: str


@dataclass(frozen=True)
class Wanted:
    """Selects lines of logs."""

    role: Role | None = None
    """Role whose processes' lines are wanted; None for every role."""
    tail: int | None = None
    """Maximum last lines of each process; None for all lines."""

    def takes(self, role: str | None, container: str) -> bool:
        """Whether lines of a container are wanted, in a pod of that role.

        An agent that runs in its episode's sandbox is the container `runner` of the sandbox pod.
        """
        if self.role is None:
            return True
        if self.role is Role.AGENT:
            return (role, container) == (names.SANDBOX, names.RUNNER)
        return role == self.role and container != names.RUNNER

    def last(self, text: str) -> list[str]:
        """The wanted lines of a complete log."""
        lines = text.splitlines()
        return lines if self.tail is None else lines[max(0, len(lines) - self.tail) :]


def stems(kind: str | None, name: str) -> tuple[str, ...]:
    """Prefixes of the names of a job's pods. If the kind is not known, the prefixes for both kinds."""
    kinds = (names.TRAINING_KIND, names.EVAL_KIND) if kind is None else (kind,)
    return tuple(names.stem(each, name) for each in kinds)


def role_of(pod: str, begins: Iterable[str]) -> str | None:
    """The role in a pod's name; None if the name has none of the prefixes `begins`."""
    for stem in begins:
        rest = pod.removeprefix(f"{stem}-")
        for role in (*names.ROLES, names.JUDGE):
            if rest != pod and (rest == role or rest.startswith(f"{role}-")):
                return role
    return None


def of_folder(folder: Path, begins: Sequence[str], wanted: Wanted) -> Iterator[Line]:
    """Lines of a local job's logs. The log that was written to last comes last.

    Args:
        folder: the job's folder `logs`.
        begins: prefixes of the job's pods, from `stems`.
        wanted: which lines to read.
    """
    for path in _files(folder, begins, wanted):
        for text in wanted.last(path.read_text(errors="replace")):
            yield Line(path.stem, text)


def followed(folder: Path, begins: Sequence[str], wanted: Wanted) -> Iterator[Line]:
    """Lines of a local job's logs, then new lines without end, also those of new processes."""
    known: dict[Path, Growing] = {}
    while True:
        for path in _files(folder, begins, wanted):
            if path not in known:
                known[path] = Growing(path)
                lines = wanted.last("\n".join(known[path].new()))
            else:
                lines = known[path].new()
            yield from (Line(path.stem, text) for text in lines)
        time.sleep(LOOK_SECONDS)


class Growing:
    """A log file that a process still writes to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._begun = b""

    def new(self) -> list[str]:
        """Lines completed since the last call."""
        with self._path.open("rb") as stream:
            stream.seek(self._at)
            found = stream.read()
        self._at += len(found)
        *ended, self._begun = (self._begun + found).split(b"\n")
        return [line.decode(errors="replace") for line in ended]


def _files(folder: Path, begins: Sequence[str], wanted: Wanted) -> list[Path]:
    found = [path for path in folder.glob(f"*{LOG}") if wanted.takes(role_of(path.stem, begins), "")]
    return sorted(found, key=lambda path: (path.stat().st_mtime, path.name))


def of_store(run: StoredRun, begins: Sequence[str], wanted: Wanted) -> Iterator[Line]:
    """Lines of the logs that processes stored at their end: the last part of each
    (`headway_api.last_logs`)."""
    folder = run.layout.logs
    with readable(folder):
        places = [(uri, *_process(uri, folder)) for uri in run.store.list(folder) if uri.endswith(LOG)]
        chosen = [each for each in places if each[1] and wanted.takes(role_of(each[1], begins), each[2])]
        texts = [*read_each(run.store, [uri for uri, _, _ in chosen], lambda data: data)]
    for (_, pod, _), data in zip(chosen, texts, strict=True):
        yield from (Line(pod, text) for text in wanted.last(data.decode(errors="replace")))


def _process(uri: str, folder: str) -> tuple[str, str]:
    """Pod and container in the key `logs/<pod>/<container>.log`; an empty pod for any other object."""
    pod, _, container = uri.removeprefix(f"{folder}/").removesuffix(LOG).rpartition("/")
    return pod, container
