"""An API server that knows a few answers, over plain HTTP, and a kubeconfig that points at it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

from headway_api import names
from headway_api.document import Json

NAMESPACE = "team"
LOOK_SECONDS = 0.05
"""How often a watch looks for a change."""


def absent(what: str) -> tuple[int, Json]:
    return 404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": f"{what} not found"}


def pod(
    name: str, role: str, *, uid: str = "u", containers: tuple[str, ...] = (), waits: bool = False
) -> Json:
    """Return a job's pod as the API server holds it. If it `waits`, its containers have not started."""
    named = containers or (role,)
    state: Json = {"waiting": {"reason": "ContainerCreating"}} if waits else {"running": {}}
    status = {"restartCount": 0, "ready": True, "image": "i", "imageID": "i", "state": state}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {names.LABEL_JOB_UID: uid, names.LABEL_COMPONENT: role},
        },
        "spec": {"containers": [{"name": each} for each in named]},
        "status": {"containerStatuses": [{"name": each, **status} for each in named]},
    }


@dataclass
class StubCluster:
    """What the API server holds. A test may change it while it is served."""

    jobs: dict[tuple[str, str], Json] = field(default_factory=dict)
    """Jobs by plural and name."""
    pods: list[Json] = field(default_factory=list)
    logs: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Log lines by pod and container."""
    refused: str = ""
    """If set, it is the answer instead of any log."""
    asked: list[Json] = field(default_factory=list)
    """The queries of all requests for logs."""
    refusal: tuple[int, Json | str] | None = None
    """If set, the status and body that answer each request for jobs."""
    applied: list[Json] = field(default_factory=list)
    watches: int = 0
    """Number of watches begun."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the server stops, so that watches end."""

    def changes(self, plural: str, query: dict[str, str]) -> Iterator[Json]:
        """Yield the events of a watch of one job, from its version on.

        A test that replaces the job must give it another version.
        """
        name, version = query["fieldSelector"].partition("=")[2], query["resourceVersion"]
        self.watches += 1
        while not self.over.wait(LOOK_SECONDS):
            found = self.jobs.get((plural, name))
            if found is None:
                yield {"type": "DELETED", "object": {"metadata": {"name": name}}}
                return
            if found["metadata"]["resourceVersion"] != version:
                version = found["metadata"]["resourceVersion"]
                yield {"type": "MODIFIED", "object": found}

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Json | str]:
        parts = path.strip("/").split("/")
        if parts[:2] == ["apis", names.GROUP]:
            if self.refusal is not None:
                return self.refusal
            found = self.jobs.get((parts[5], parts[6])) if len(parts) > 6 else None
            items = [job for (plural, _), job in self.jobs.items() if plural == parts[5]]
            if len(parts) == 6:
                return 200, {"items": items}
            return (200, found) if found else absent(parts[6])
        if parts[-1] == "pods":
            wanted = query["labelSelector"].partition("=")[2]
            labels = [each["metadata"]["labels"][names.LABEL_JOB_UID] for each in self.pods]
            return 200, {"items": [p for p, uid in zip(self.pods, labels, strict=True) if uid == wanted]}
        self.asked.append(query)
        if self.refused:
            status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": self.refused}
            return 403, status
        lines = self.logs.get((parts[-2], query["container"]))
        if lines is None:
            return absent(parts[-2])
        if "tailLines" in query:
            lines = lines[-int(query["tailLines"]) :]
        return 200, "".join(f"{line}\n" for line in lines)


@contextmanager
def served(cluster: StubCluster, folder: Path) -> Iterator[Path]:
    """Serve the cluster while the block lasts; yield the kubeconfig's path."""

    class Handler(BaseHTTPRequestHandler):
        def _say(self, code: int, body: Json | str) -> None:
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            if "watch" in query:
                self._stream(cluster.changes(parts.path.strip("/").split("/")[5], query))
            else:
                self._say(*cluster.answer(parts.path, query))

        def _stream(self, events: Iterator[Json]) -> None:
            self.protocol_version, self.close_connection = "HTTP/1.1", True
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(ConnectionError):  # the watcher has gone
                for event in events:
                    data = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.write(b"0\r\n\r\n")

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if cluster.refusal is not None:
                self._say(*cluster.refusal)
                return
            cluster.applied.append(body)
            self._say(200, body)

        def log_message(self, *args: object) -> None:
            """Log nothing, because tests read stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "stub",
        "contexts": [
            {"name": "stub", "context": {"cluster": "stub", "user": "stub", "namespace": NAMESPACE}}
        ],
        "clusters": [{"name": "stub", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "stub", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    try:
        yield path
    finally:
        cluster.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
