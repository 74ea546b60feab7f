"""kubectl, as far as the demo needs it."""

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
from typing import Any, cast


class KubeError(Exception):
    """kubectl refused; the message is its own."""


class Kube:
    """One cluster, reached with one kubeconfig (None: the one kubectl is set up with)."""

    def __init__(self, kubeconfig: Path | None, kubectl: str = "kubectl") -> None:
        self.kubeconfig = kubeconfig
        self._kubectl = kubectl

    @property
    def environ(self) -> dict[str, str]:
        """Environment for tools that find the cluster by KUBECONFIG."""
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
        """Server-side apply of whole objects."""
        text = "\n---\n".join(json.dumps(document) for document in documents)
        return self.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get -o json`."""
        return cast(dict[str, Any], json.loads(self.run("get", *arguments, "-o", "json")))

    def wait(
        self,
        what: str,
        ready: Callable[[], bool],
        *,
        deadline_s: float,
        explain: Callable[[], str] | None = None,
    ) -> None:
        """Poll until `ready()`. At the deadline, the error contains `explain()`."""
        ends = time.monotonic() + deadline_s
        while not ready():
            if time.monotonic() > ends:
                raise KubeError(f"waited {deadline_s:.0f} s for {what}. {explain() if explain else ''}")
            time.sleep(0.5)

    def wait_available(self, namespace: str, deployment: str, *, deadline_s: float = 180) -> None:
        """Wait for every replica of a Deployment."""

        def ready() -> bool:
            found = self.get("deployment", deployment, "-n", namespace)
            wanted = found["spec"]["replicas"]
            return bool(found.get("status", {}).get("readyReplicas", 0) >= wanted)

        self.wait(
            f"deployment {namespace}/{deployment}", ready, deadline_s=deadline_s,
            explain=lambda: self.run("get", "pods,events", "-n", namespace),
        )  # fmt: skip

    @contextmanager
    def forward(self, namespace: str, target: str, port: int) -> Iterator[int]:
        """`kubectl port-forward` for as long as the block runs; yields the local port."""
        process = subprocess.Popen(
            [self._kubectl, "port-forward", "-n", namespace, target, f":{port}"],
            env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            port = _forwarded_port(process, deadline_s=30)
            # kubectl writes a line for each connection: a full pipe would block it, and the tunnel with it.
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
            yield port
        finally:
            process.terminate()
            process.wait(timeout=10)


def _drain(process: subprocess.Popen[str]) -> None:
    """Read what a process writes until it ends."""
    assert process.stdout is not None
    with process.stdout:
        for _ in process.stdout:
            pass


def _forwarded_port(process: subprocess.Popen[str], *, deadline_s: float) -> int:
    """Read the local port from what kubectl prints once the tunnel is open."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], deadline_s)
    line = process.stdout.readline() if ready else ""
    found = re.search(r"127\.0\.0\.1:(\d+)", line)
    if found is None:
        process.terminate()
        raise KubeError(f"port-forward did not start: {line.strip() or 'no answer'}")
    return int(found[1])
