"""Jobs on this machine: each is a process of `headway run --local`, with a folder for its files."""

from __future__ import annotations

import fcntl
import json
import signal
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_cli import bill, near_names, stored_run, where
from headway_cli.bill import Bill
from headway_cli.client import outcome
from headway_cli.client.child import Child, children
from headway_cli.client.outcome import RunFailedError
from headway_cli.local import engine, manifest
from headway_cli.local.manifest import ManifestError
from headway_cli.local.pod import kill_all, left_over
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun
from headway_cli.where import LocalJob

LOOK_SECONDS: Final = 0.1
ORDERLY: Final = (0, 1, 2, 3, 130, -signal.SIGTERM)
"""Exit codes of `headway run` that are no crash. SIGTERM may end the process before the job has begun."""
WRONG: Final = 2
"""Exit code of `headway run` if the job or an option is wrong."""
ERROR: Final = "headway: "
"""Prefix of an error message of `headway`."""
LAST_LINES: Final = 20
"""Last lines of a crashed process's stderr that its error shows."""


@dataclass(frozen=True)
class OnThisMachine:
    """The jobs in the folder `jobs`, each in a subfolder of its name."""

    jobs: Path
    modules: Path | None = None
    """Folder of the environment's modules; None: the folder of the job's file."""
    prices: Path | None = None
    """File of the price book; None: the built-in price book."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """File with the token of each Secret that a job names, by the Secret's name."""

    def begin(self, job: Json, home: Path | None, *, fresh: bool) -> LocalRun:
        """Start a job's process, and wait until the job has begun. Arguments are those of `places.JobPlace`.

        Raises:
            ManifestError: the job is wrong, already runs, or names no modules.
            RunFailedError: the process has crashed.
        """
        made = self._of(job["kind"], job["metadata"]["name"], self.modules or home)
        made.start(job, ["--fresh"] if fresh else [])
        return made

    def find(self, kind: str, name: str) -> LocalRun:
        """The existing job of this kind and name.

        Raises:
            RunNotFoundError: there is no such job.
        """
        if not manifest.NAME.fullmatch(name) or not where.is_local_job(self.jobs / name):
            there = (each.name for each in where.local_jobs(self.jobs))
            hint = near_names.question(name, there) or "write folder= of the jobs, or train it"
            raise RunNotFoundError(f"{self.jobs} has no job {name}; {hint}")
        found = self._of(kind, name, self.modules)
        if (stored := found.now()["kind"]) != kind:
            raise RunNotFoundError(
                f"{self.jobs / name} has an {stored}, not an {kind}: write the other kind="
            )
        return found

    def _of(self, kind: str, name: str, modules: Path | None) -> LocalRun:
        options: list[str] = [] if self.prices is None else ["--prices", str(self.prices.resolve())]
        for secret, file in self.secrets.items():
            options += ["--secret", f"{secret}={Path(file).resolve()}"]
        return LocalRun((self.jobs / name).resolve(), kind, name, modules, tuple(options))


@dataclass(frozen=True)
class LocalRun:
    """One job on this machine. The methods are those of `places.Job`."""

    folder: Path
    kind: str
    name: str
    modules: Path | None
    options: tuple[str, ...]

    def start(self, job: Json, more: Sequence[str]) -> None:
        """Begin the job in a process of its own, and wait until it has begun.

        Args:
            job: the job, as in its file.
            more: further options of `headway run`.

        Raises:
            ManifestError: the job is wrong, already runs, or names no modules.
            RunFailedError: the process has crashed.
        """
        if self.modules is None:
            raise ManifestError(
                "modules: this client does not know the folder of the environment's modules; write "
                "TrainingClient(local=True, modules=FOLDER)"
            )
        with tempfile.TemporaryDirectory(prefix="headway-") as folder:
            file = Path(folder) / "job.json"
            file.write_text(json.dumps(job))
            words = ["run", str(file), "--local", "--folder", str(self.folder)]
            words += ["--environment", str(self.modules.resolve()), *self.options, *more]
            child = Child.start(words)
            try:
                while not child.has_begun and child.code is None:
                    time.sleep(LOOK_SECONDS)
            except BaseException:
                child.end()
                raise
        self._report_stderr(child)
        children[self.folder] = child

    def _report_stderr(self, child: Child) -> None:
        """Raise the errors and warn with the warnings that a child wrote to stderr until the job began."""
        noted = child.noted
        if child.code == WRONG and not child.has_begun:
            wrong = [each.removeprefix(ERROR) for each in noted if each.startswith(ERROR)]
            raise ManifestError("\n".join(wrong or noted))
        self._require_orderly(child)
        for each in noted:
            warnings.warn(each.removeprefix("warning: "), stacklevel=5)

    def _require_orderly(self, child: Child) -> None:
        """If the process has crashed, kill the job's remaining processes and raise RunFailedError."""
        if child.code is not None and child.code not in ORDERLY:
            kill_all(left_over(self.folder))
            output = "\n".join(child.noted[-LAST_LINES:])
            raise RunFailedError(self.name, "Crashed", f"its process ended with {child.code}: {output}")

    def now(self) -> Json:
        """The job with its status, from its folder."""
        if not where.is_local_job(self.folder):
            raise RunNotFoundError(f"{self.folder} no longer has a job")
        return JobFolder(self.folder).whole()

    def job_if_stopped(self) -> Json | None:
        """The job if no process runs it; None otherwise."""
        if self.is_run():
            return None
        job, child = self.now(), children.get(self.folder)
        if child is not None and not outcome.is_over(job):
            self._require_orderly(child)
        return job

    def is_run(self) -> bool:
        """Whether a process of this machine runs the job: it then holds the lock file beside the folder."""
        child = children.get(self.folder)
        if child is not None and child.code is None:
            return True
        try:
            with (self.folder.parent / f".{self.folder.name}.lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def suspend(self) -> None:
        """Set spec.suspend in the job's folder. The process that runs the job then stops it."""
        raw = self.now()
        if raw["spec"].get("suspend") is not True:
            metadata = {**raw["metadata"], "generation": raw["metadata"].get("generation", 1) + 1}
            suspended = {**raw, "metadata": metadata, "spec": {**raw["spec"], "suspend": True}}
            JobFolder(self.folder).write(suspended)

    def resume(self) -> None:
        """End the job's pause or suspension: start the job again, once no process runs it."""
        while self.is_run():
            raw = self.now()
            if not raw["spec"].get("suspend") and not engine.is_held(raw):
                return  # it continues
            time.sleep(LOOK_SECONDS)
        self.start(as_written(self.now()), ["--resume"])

    def stored(self) -> StoredRun:
        """The stored run in the job's folder."""
        return stored_run.opened(LocalJob(self.folder))

    def bill(self) -> Bill:
        """The bill from the job's ledger."""
        return bill.read(self.stored(), None)


def as_written(stored: Json) -> Json:
    """A stored job as a person would write it in a file, and not suspended. Pure."""
    kept = ("name", "namespace", "labels")
    metadata = {key: value for key, value in stored["metadata"].items() if key in kept}
    spec = {**stored["spec"], "suspend": False}
    return {"apiVersion": stored["apiVersion"], "kind": stored["kind"], "metadata": metadata, "spec": spec}
