"""A tracking server that redirects MLflow to another address. The client sends no request there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headway_api.artifacts import Layout
from headway_api.store import FileStore
from headway_coordinator.metrics.mlflow import About, connect


@contextmanager
def served(leads_to: str = "") -> Iterator[tuple[str, list[str]]]:
    """A server that redirects to `leads_to`, or answers if that is empty.

    Yields its address and the requested paths.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(307 if leads_to else 200)
            if leads_to:
                self.send_header("Location", leads_to + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Log no request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_mlflow_follows_no_redirect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_HTTP_REDIRECTS", "true")  # a pod template of the job may set it
    with served() as (hidden, reached), served(hidden) as (tracking, asked):
        layout = Layout(f"file://{tmp_path}", "ns", "job", "uid")
        logger = connect(tracking, FileStore(), layout, "ns/job", About("job"))
        logger.start()
        logger.log({"loss": 1.0}, 1, 0)
        logger.close()
        assert asked
        assert reached == []
        assert logger.failures == 1
