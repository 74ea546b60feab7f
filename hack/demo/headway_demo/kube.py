"""Runs the kubectl commands that the demo needs."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any, cast


class KubeError(Exception):
    """A kubectl command failed, or a wait ran out of time. For a failed command, the message is kubectl's."""


class Kube:
    """One cluster, with its kubeconfig. None means kubectl's current configuration."""

    def __init__(self, kubeconfig: Path | None, kubectl: str = "kubectl") -> None:
        self.kubeconfig = kubeconfig
        self._kubectl = kubectl

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables for tools that find the cluster by KUBECONFIG."""
        extra = {"KUBECONFIG": str(self.kubeconfig)} if self.kubeconfig else {}
        return {**os.environ, **extra}

    def run(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        """Standard output of `kubectl arguments`."""
        done = subprocess.run(
            [self._kubectl, *arguments], env=self.environ, input=stdin, text=True, capture_output=True,
            timeout=timeout_s,
        )  # fmt: skip
        if done.returncode:
            raise KubeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *documents: Mapping[str, Any]) -> str:
        """Apply whole objects with server-side apply."""
        text = "\n---\n".join(json.dumps(document) for document in documents)
        return self.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def get(self, *arguments: str) -> dict[str, Any]:
        """The parsed output of `kubectl get -o json`."""
        return cast(dict[str, Any], json.loads(self.run("get", *arguments, "-o", "json")))

    def wait(
        self,
        what: str,
        ready: Callable[[], bool],
        *,
        deadline_s: float,
        explain: Callable[[], str] | None = None,
    ) -> None:
        """Poll until `ready()` returns True. The error at the deadline contains `explain()`."""
        ends = time.monotonic() + deadline_s
        while not ready():
            if time.monotonic() > ends:
                raise KubeError(f"waited {deadline_s:.0f} s for {what}. {explain() if explain else ''}")
            time.sleep(0.5)

    def wait_available(self, namespace: str, deployment: str, *, deadline_s: float = 180) -> None:
        """Wait until every replica of a Deployment is available.

        Raises:
            KubeError: the deadline passed; the message lists the namespace's pods and events.
        """
        asked = (f"deployment/{deployment}", "-n", namespace, f"--timeout={deadline_s:.0f}s")
        try:
            self.run("rollout", "status", *asked, timeout_s=deadline_s + 60)
        except KubeError as error:
            raise KubeError(f"{error}\n{self.run('get', 'pods,events', '-n', namespace)}") from error

    def changes(self, *arguments: str, deadline_s: float) -> Iterator[dict[str, Any]]:
        """The objects that `kubectl get arguments` selects: their present state, then each change until the
        deadline.

        Raises:
            KubeError: kubectl failed before it returned an object.
        """
        ends = time.monotonic() + deadline_s
        while (left := ends - time.monotonic()) > 0:
            with self._watching(*arguments) as watch:
                yield from watch.objects(left)
                if (refusal := watch.refusal()) is not None:
                    raise KubeError(f"kubectl get {' '.join(arguments)} --watch: {refusal}")

    @contextmanager
    def _watching(self, *arguments: str) -> Iterator[_Watch]:
        process = subprocess.Popen(
            [self._kubectl, "get", *arguments, "--watch", "-o", "json"],
            env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield _Watch(process)
        finally:
            process.terminate()
            process.wait(timeout=10)

    @contextmanager
    def forward(self, namespace: str, target: str, port: int) -> Iterator[int]:
        """Run `kubectl port-forward` during the block, and yield the local port."""
        process = subprocess.Popen(
            [self._kubectl, "port-forward", "-n", namespace, target, f":{port}"],
            env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            port = _forwarded_port(process, deadline_s=30)
            # kubectl writes a line for each connection. A full pipe would block kubectl, and so the tunnel.
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
            yield port
        finally:
            process.terminate()
            process.wait(timeout=10)


class _Watch:
    """Reads the objects that `kubectl get --watch` writes. It uses threads, because a pipe has no
    deadline."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._found: Queue[dict[str, Any] | None] = Queue()
        self._errors: list[str] = []
        self._seen = False
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._listen)]
        for thread in self._threads:
            thread.start()

    def objects(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Each object until kubectl ends, for at most `seconds`."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            try:
                found = self._found.get(timeout=left)
            except Empty:
                return
            if found is None:
                return
            self._seen = True
            yield found

    def refusal(self) -> str | None:
        """kubectl's error output if it failed before it wrote an object; otherwise None.

        A later end is no failure, because an API server ends long watches.
        """
        if self._seen or not self._process.poll():
            return None
        self._threads[1].join()
        return "".join(self._errors).strip() or "no answer"

    def _read(self) -> None:
        assert self._process.stdout is not None
        lines: list[str] = []
        with self._process.stdout as stdout:
            for line in stdout:
                lines.append(line)
                if line.rstrip("\n") == "}":  # kubectl indents objects, so a lone brace ends an object
                    self._found.put(json.loads("".join(lines)))
                    lines.clear()
        self._process.wait()
        self._found.put(None)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            self._errors.extend(stderr)


def _drain(process: subprocess.Popen[str]) -> None:
    """Read and discard a process's output until it ends."""
    assert process.stdout is not None
    with process.stdout:
        for _ in process.stdout:
            pass


def _forwarded_port(process: subprocess.Popen[str], *, deadline_s: float) -> int:
    """Read the local port from the line that kubectl prints once the tunnel is open."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], deadline_s)
    line = process.stdout.readline() if ready else ""
    found = re.search(r"127\.0\.0\.1:(\d+)", line)
    if found is None:
        process.terminate()
        raise KubeError(f"port-forward did not start: {line.strip() or 'no answer'}")
    return int(found[1])
