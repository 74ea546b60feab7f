"""The learner's client of the coordinator: announce a step, ask for the next batch.

    POST /v1/steps      StepReport: idempotent, sent again after every restart of either side
    GET  /v1/batch?step=n&wait=s   200 Batch (gzip) | 204 not yet | 410 Finished | 409 announce first

The coordinator may be unavailable (restarting, rescheduled) for `PATIENCE` seconds. Until then the client
retries every request.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from headway_api import bounds
from headway_api.backoff import doubled
from headway_api.bounds import OutOfBoundsError, containers_within, shortened
from headway_api.exits import JobError
from headway_api.names import STARTING
from headway_api.packed import MAGIC, unpacked
from headway_api.record import explained
from headway_api.records import Batch, Finished, StepReport
from headway_api.sandbox_api import Problem
from headway_trainer.exchange import ExchangeLimits, ExchangeResponse, NoResponseError, Request, exchange
from headway_trainer.logs import log

LONG_POLL: Final = 30.0
"""Seconds that the coordinator may hold a request for a batch."""
SILENCE: Final = 30.0
"""Maximum seconds without a byte from the coordinator.

It applies between two pieces of an answer. Before the head of an answer, the time that the coordinator may
hold the request is added. After SIGTERM a learner may have to wait this long before it can save.
"""
PATIENCE: Final = 600.0
"""Seconds without any answer after which the learner saves what is not durable, ends, and is started again.
An answer that says "the coordinator is starting" counts as an answer."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
MAX_PACKED: Final = 1024 * bounds.MIB
"""Maximum bytes of one answer, as received (compressed)."""
MAX_PLAIN: Final = 4 * MAX_PACKED
WHOLE: Final = 600.0
"""Maximum seconds from an answer's first byte to its last."""
CONTAINERS: Final = 10_000_000
"""Maximum number of JSON lists and objects in one batch. Each takes some hundred bytes in memory. A turn has
about ten."""
SHOWN: Final = 500
"""Maximum characters of an answer that an error quotes."""
AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class StepNotAnnouncedError(Exception):
    """The coordinator does not know this learner's step."""


class CoordinatorUnreachableError(JobError):
    """The coordinator did not answer within the learner's patience. This error can be pickled, so that every
    rank can receive it."""

    def __init__(self, message: str) -> None:
        super().__init__("CoordinatorUnreachable", message, permanent=False)


class CoordinatorClient:
    """Client of the coordinator's learner API; blocking, used by rank 0 only."""

    def __init__(self, url: str, key: str, *, patience: float = PATIENCE) -> None:
        self._url = url.rstrip("/")
        self._key = key
        self._patience = patience
        self._silent_since: float | None = None
        self._failures = 0

    def announce(self, report: StepReport, give_up: Callable[[], bool] = lambda: False) -> None:
        """Send a step report until the coordinator accepts it.

        While the coordinator is unavailable, `give_up` says whether to stop retrying. A learner that resumes
        later sends the report again.

        Raises:
            CoordinatorUnreachableError: the coordinator did not answer.
            JobError: the coordinator refuses this learner.
        """
        body = report.model_dump_json().encode()
        while True:
            try:
                self._exchange("POST", "/v1/steps", body)
                return
            except NoResponseError as error:
                if give_up():
                    return
                self._wait(error)

    def poll(self, step: int, wait: float = LONG_POLL) -> Batch | Finished | None:
        """Ask once for the batch of `step`; None if there is none within `wait` seconds, or no answer.

        Raises:
            StepNotAnnouncedError: announce the latest step, then ask again.
            CoordinatorUnreachableError: the coordinator did not answer.
            JobError: the coordinator refuses this learner.
        """
        try:
            answer = self._exchange("GET", f"/v1/batch?step={step}&wait={wait:g}", wait=wait)
        except NoResponseError as error:
            self._wait(error)
            return None
        if answer.status == http.client.NO_CONTENT:
            return None
        record = Finished if answer.status == http.client.GONE else Batch
        try:
            return record.model_validate_json(_plain(answer.body))
        except (ValidationError, OutOfBoundsError) as error:
            why = explained(error) if isinstance(error, ValidationError) else shortened(str(error), SHOWN)
            raise JobError("ContractMismatch", f"the coordinator's answer cannot be read: {why}") from error

    def _exchange(
        self, method: str, path: str, body: bytes | None = None, *, wait: float = 0.0
    ) -> ExchangeResponse:
        headers = {"Authorization": f"Bearer {self._key}", "Accept-Encoding": "gzip"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        within = ExchangeLimits(head=wait + SILENCE, silence=SILENCE, whole=WHOLE, size=MAX_PACKED)
        try:
            answer = exchange(self._url, Request(method, path, headers, body), within)
        except OutOfBoundsError as error:
            raise JobError("ContractMismatch", f"the coordinator answers with {error}") from error
        if answer.status in AGAIN:
            if _is_starting(answer):
                self._silent_since = None
            raise NoResponseError(f"HTTP {answer.status}")
        self._silent_since, self._failures = None, 0
        _refuse(answer, method, path)
        return answer

    def _wait(self, error: NoResponseError) -> None:
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        silent = now - self._silent_since
        if silent > self._patience:
            raise CoordinatorUnreachableError(
                f"no answer from {self._url} for {silent:.0f} s ({error})"
            ) from error
        log("coordinator away", seconds=round(silent, 1), error=str(error))
        self._failures += 1
        time.sleep(doubled(self._failures, FIRST_PAUSE, LONGEST_PAUSE))


def _is_starting(answer: ExchangeResponse) -> bool:
    """Whether the coordinator is up but still reads its predecessor's data, which takes minutes for a long
    run."""
    try:
        return Problem.model_validate_json(answer.body).reason == STARTING
    except ValidationError:
        return False


def _refuse(answer: ExchangeResponse, method: str, path: str) -> None:
    if answer.status in (200, 201, 202, 204, 410):
        return
    message = shortened(answer.body[:SHOWN].decode(errors="replace"), SHOWN)
    if answer.status == http.client.CONFLICT and method == "GET":
        raise StepNotAnnouncedError(message)
    refused = answer.status in (401, 403, 409)
    raise JobError(
        "CoordinatorRefused" if refused else "ContractMismatch",
        f"{method} {path} was answered {answer.status}: {message}",
        permanent=not refused,
    )


def _plain(body: bytes) -> bytes:
    """An answer's content, decompressed.

    Raises:
        OutOfBoundsError: the content is far larger, or has more lists and objects, than any batch.
    """
    if not body.startswith(MAGIC):
        return containers_within(body, CONTAINERS)
    return containers_within(unpacked(body, MAX_PLAIN), CONTAINERS)
