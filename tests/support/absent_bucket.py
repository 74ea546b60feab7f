"""A fake S3 bucket on this machine that can be unavailable for a while. It has as much as boto3 uses."""

from __future__ import annotations

import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LONGEST = 30.0
"""Seconds after which the bucket is available again by default."""


class AbsentBucket:
    """Objects by path (`/bucket/key`). While unavailable, it refuses connections, answers with an error
    status, or cuts answers off."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked = 0
        """Number of requests received, answered or not."""
        self.asked_by: Counter[str] = Counter()
        """Number of requests received, by method."""
        self._server: ThreadingHTTPServer | None = None
        self._answer: int | str = "well"
        self._leaves_at: tuple[str, int] | None = None
        self._port = 0
        self._open()

    @property
    def url(self) -> str:
        """The address for `spec.output.endpointUrl`."""
        return f"http://127.0.0.1:{self._port}"

    def leave(self, how: int | str, seconds: float = LONGEST) -> None:
        """Be unavailable for some seconds. `how`: `refused`, `cut off`, or the status to answer with."""
        if how == "refused":
            self.close()
            back = threading.Timer(seconds, self._open)
        else:
            self._answer = how
            back = threading.Timer(seconds, self._recover)
        back.daemon = True
        back.start()

    def leave_once_asked(self, words: str, status: int) -> None:
        """Become unavailable with `status` at the first request whose target contains `words`."""
        self._leaves_at = (words, status)

    def close(self) -> None:
        """Stop listening."""
        if (server := self._server) is not None:
            self._server = None
            server.shutdown()
            server.server_close()

    def _recover(self) -> None:
        self._answer = "well"

    def _open(self) -> None:
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10
            # One request a connection, so that no kept connection outlives the close of the server.
            protocol_version = "HTTP/1.0"

            def _answered(self) -> None:
                if self.headers.get("Expect") == "100-continue":  # otherwise boto3 waits a second for the 100
                    self.handle_expect_100()
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                bucket.asked += 1
                bucket.asked_by[self.command] += 1
                if bucket._leaves_at is not None and bucket._leaves_at[0] in self.path:
                    bucket.leave(bucket._leaves_at[1])
                    bucket._leaves_at = None
                if isinstance(bucket._answer, int):
                    self._say(bucket._answer, b"<Error><Code>x</Code><Message>away</Message></Error>")
                    return
                status, content, headers = bucket._done(
                    self.command, self.path, self.headers.get("Range"), body
                )
                self._say(status, content, headers, cut=bucket._answer == "cut off")

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answered

            def _say(
                self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False
            ) -> None:
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: len(body) // 2] if cut else body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        server = self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        server.daemon_threads = True
        self._port = int(server.server_address[1])
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def _done(
        self, method: str, target: str, wanted: str | None, body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(target)
        path, query = unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)
        tag = {"ETag": '"tag"'}
        if "list-type" in query:
            return 200, self._listed(path, query["prefix"][0]), {}
        if method == "POST" and "uploads" in query:
            document = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
            return 200, document.encode(), {}
        if method == "POST" and "delete" in query:
            for key in re.findall("<Key>([^<]+)</Key>", body.decode()):
                self.objects.pop(f"{path}/{key}", None)
            return 200, b"<DeleteResult/>", {}
        if method == "POST":
            numbers = sorted(int(n) for n in re.findall(rb"<PartNumber>(\d+)<", body))
            self.objects[path] = b"".join(self.objects.pop(f"part {n} of {path}") for n in numbers)
            return 200, b"<CompleteMultipartUploadResult/>", {}
        if method == "PUT":
            part = query.get("partNumber")
            self.objects[f"part {part[0]} of {path}" if part else path] = body
            return 200, b"", tag
        if method == "DELETE":
            self.objects.pop(path, None)
            return 204, b"", {}
        if path.count("/") == 1:  # the bucket itself
            return 200, b"", {}
        if path not in self.objects:
            return 404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>", {}
        found = self.objects[path]
        if wanted is not None:
            first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
            whole = f"bytes {first}-{min(last, len(found) - 1)}/{len(found)}"
            return 206, found[first : last + 1], tag | {"Content-Range": whole}
        return 200, found, tag

    def _listed(self, bucket: str, prefix: str) -> bytes:
        keys = sorted(path.removeprefix(f"{bucket}/") for path in self.objects if path.startswith(bucket))
        found = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys if key.startswith(prefix))
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()
