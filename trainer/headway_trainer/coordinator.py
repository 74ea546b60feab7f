"""The learner's side of its one conversation: announce a step, ask for the next batch.

    POST /v1/steps      StepReport: idempotent, sent again after every restart of either side
    GET  /v1/batch?step=n&wait=s   200 Batch (gzip) | 204 not yet | 410 Finished | 409 announce first

The coordinator may be away (restarting, rescheduled) for `PATIENCE`; until then everything is tried again.
"""

from __future__ import annotations

import gzip
import http.client
import io
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Final

from pydantic import ValidationError

from headway_api import bounds
from headway_api.bounds import OutOfBounds, shortened
from headway_api.exits import JobError
from headway_api.names import STARTING
from headway_api.record import explained
from headway_api.records import Batch, Finished, StepReport
from headway_api.sandbox_api import Problem
from headway_trainer.logs import log

LONG_POLL: Final = 30.0
"""Seconds the coordinator may hold a request for a batch."""
SILENCE: Final = 30.0
"""Seconds without a word, besides those that the coordinator was asked to hold it, until a request counts as
lost. A learner that is told to stop may have to wait so long before it can save."""
PATIENCE: Final = 600.0
"""Seconds without any answer after which the learner saves what is not durable and is started again. That the
coordinator is starting is one."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
MOST_PACKED: Final = 1024 * bounds.MIB
"""Bytes of one answer, as it comes."""
MOST_PLAIN: Final = 4 * MOST_PACKED
FREE_PLAIN: Final = 16 * bounds.MIB
RATIO: Final = 100
"""Bytes of a batch for each that comes, beyond `FREE_PLAIN`: tokens compress ten times, a bomb a thousand."""
WHOLE: Final = 600.0
"""Seconds that one answer may take from its first byte to its last."""
PART: Final = 64 * bounds.KIB
SHOWN: Final = 500
"""Characters of an answer in an error."""
GZIP_MAGIC: Final = b"\x1f\x8b"
AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class Away(Exception):
    """No answer, or one that says to try again."""


class AnnounceFirst(Exception):
    """The coordinator does not know the step that this learner is at."""


class Unreachable(JobError):
    """The coordinator stayed away for longer than the learner's patience; pickles, so that every rank can be
    told."""

    def __init__(self, message: str) -> None:
        super().__init__("CoordinatorUnreachable", message, permanent=False)


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it is an answer like another, and refused."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes


class Coordinator:
    """Client of the coordinator's learner API; blocking, used by rank 0 only."""

    def __init__(self, url: str, key: str, *, patience: float = PATIENCE) -> None:
        self._url = url.rstrip("/")
        self._key = key
        self._patience = patience
        # The coordinator is in the same namespace: a proxy from the environment is never on the way.
        # A redirect would carry the key to another host.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({}), _StayHere()).open
        self._silent_since: float | None = None
        self._pause = FIRST_PAUSE

    def announce(self, report: StepReport, give_up: Callable[[], bool] = lambda: False) -> None:
        """Send a step report until it is taken, or `give_up` says, while the coordinator is away, that there
        is no time: whoever resumes sends it again.

        Raises:
            Unreachable: the coordinator stayed away.
            JobError: it refuses this learner.
        """
        body = report.model_dump_json().encode()
        while True:
            try:
                self._exchange("POST", "/v1/steps", body)
                return
            except Away as away:
                if give_up():
                    return
                self._wait(away)

    def poll(self, step: int, wait: float = LONG_POLL) -> Batch | Finished | None:
        """Ask once for the batch of `step`; None where there is none in `wait` seconds, or no answer.

        Raises:
            AnnounceFirst: announce the latest step, then ask again.
            Unreachable: the coordinator stayed away.
            JobError: it refuses this learner.
        """
        try:
            answer = self._exchange("GET", f"/v1/batch?step={step}&wait={wait:g}", wait=wait)
        except Away as away:
            self._wait(away)
            return None
        if answer.status == http.client.NO_CONTENT:
            return None
        record = Finished if answer.status == http.client.GONE else Batch
        try:
            return record.model_validate_json(_plain(answer.body))
        except (ValidationError, OutOfBounds, OSError, EOFError, zlib.error) as error:
            said = explained(error) if isinstance(error, ValidationError) else shortened(str(error), SHOWN)
            raise JobError("ContractMismatch", f"the coordinator's answer cannot be read: {said}") from error

    def _exchange(self, method: str, path: str, body: bytes | None = None, *, wait: float = 0.0) -> _Answer:
        request = urllib.request.Request(self._url + path, data=body, method=method)
        request.add_header("Authorization", f"Bearer {self._key}")
        request.add_header("Accept-Encoding", "gzip")
        if body is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with self._open(request, timeout=wait + SILENCE) as response:
                answer = _Answer(response.status, _content(response, MOST_PACKED))
        except urllib.error.HTTPError as error:
            with error:
                answer = _Answer(error.code, _body(error))
        except (OSError, http.client.HTTPException) as error:
            raise Away(f"{type(error).__name__}: {error}") from error
        if answer.status in AGAIN:
            if _is_starting(answer):
                self._silent_since = None
            raise Away(f"HTTP {answer.status}")
        self._silent_since, self._pause = None, FIRST_PAUSE
        _refuse(answer, method, path)
        return answer

    def _wait(self, away: Away) -> None:
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        silent = now - self._silent_since
        if silent > self._patience:
            raise Unreachable(f"no answer from {self._url} for {silent:.0f} s ({away})") from away
        log("coordinator away", seconds=round(silent, 1), error=str(away))
        time.sleep(self._pause)
        self._pause = min(LONGEST_PAUSE, self._pause * 2)


def _is_starting(answer: _Answer) -> bool:
    """Whether the coordinator is there, and reads what a predecessor left: minutes, of a long run."""
    try:
        return Problem.model_validate_json(answer.body).reason == STARTING
    except ValidationError:
        return False


def _refuse(answer: _Answer, method: str, path: str) -> None:
    if answer.status in (200, 201, 202, 204, 410):
        return
    said = shortened(answer.body[:SHOWN].decode(errors="replace"), SHOWN)
    if answer.status == http.client.CONFLICT and method == "GET":
        raise AnnounceFirst(said)
    refused = answer.status in (401, 403, 409)
    raise JobError(
        "CoordinatorRefused" if refused else "ContractMismatch",
        f"{method} {path} was answered {answer.status}: {said}",
        permanent=not refused,
    )


def _content(response: IO[bytes], most: int) -> bytes:
    """What an answer holds, as it came.

    Raises:
        Away: its bytes come too slowly to be one.
        JobError: it is more than `most` bytes.
    """
    deadline, parts, size = time.monotonic() + WHOLE, [], 0
    while part := response.read1(PART):  # type: ignore[attr-defined]
        size += len(part)
        if size > most:
            raise JobError("ContractMismatch", f"the coordinator answers with more than {most} bytes")
        if time.monotonic() > deadline:
            raise Away(f"the answer did not come within {WHOLE:.0f} s")
        parts.append(part)
    if getattr(response, "length", None):  # bytes that were promised and never came
        raise http.client.IncompleteRead(b"")
    return b"".join(parts)


def _body(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(bounds.CALL)
    except (OSError, http.client.HTTPException) as broken:
        raise Away(f"{type(broken).__name__}: {broken}") from broken


def _plain(body: bytes) -> bytes:
    """An answer's content, decompressed.

    Raises:
        OutOfBounds: it would be far larger than any batch that compresses to so little.
    """
    if not body.startswith(GZIP_MAGIC):
        return body
    most = min(MOST_PLAIN, FREE_PLAIN + RATIO * len(body))
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
        plain = packed.read(most + 1)
    if len(plain) > most:
        raise OutOfBounds(f"more than {most} bytes, decompressed from {len(body)}")
    return plain
