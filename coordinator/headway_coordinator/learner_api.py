"""HTTP between learner and coordinator, and the coordinator's probes and metrics.

GET  /v1/batch?step=n&wait=s   200 Batch (gzip) | 204 not yet | 410 Finished | 401, 409, 503 Problem
POST /v1/steps          204 | 400, 401, 409, 503 Problem
GET  /healthz /readyz /metrics
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import ValidationError

from headway_api import bounds, names
from headway_api.bounds import OutOfBoundsError, json_within, shortened
from headway_api.exits import JobError
from headway_api.keys import Key
from headway_api.record import explained
from headway_api.records import Batch, Finished, StepReport
from headway_api.sandbox_api import Problem
from headway_coordinator.bounds import StepConflictError
from headway_coordinator.training import Training
from headway_wire.contents import BodyTimeoutError, BodyTooLargeError, body
from headway_wire.listening import known

POLL_SECONDS = 30.0
MAX_BODY = bounds.REPORT
UNAUTHORIZED = f"send this job's key {Key.LEARNER_TO_COORDINATOR} as Authorization: Bearer"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Probes:
    """The coordinator's routes for the kubelet's probes and for Prometheus."""

    def __init__(self, metrics: Callable[[], bytes]) -> None:
        self._metrics = metrics
        self.ready = False
        """Whether episodes are sampled, or the preflight is over and the predecessor's state is restored."""

    def app(self) -> web.Application:
        """The application to serve."""
        app = web.Application()
        self.add(app)
        return app

    def add(self, app: web.Application) -> None:
        """Add the routes to another application."""
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._prometheus)

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        if not self.ready:
            return problem(503, names.STARTING, "preflight is not over")
        return web.Response(text="ok")

    async def _prometheus(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


class LearnerApi:
    """The learner's routes to a `Training`. Until it exists, they answer with 503, so the learner retries."""

    def __init__(self, key: str, metrics: Callable[[], bytes]) -> None:
        self._key = key
        self._probes = Probes(metrics)
        self._training: Training | None = None
        self.has_sent_finished = False
        """Whether an answer has said to the learner that there is nothing more to train."""

    @property
    def training(self) -> Training | None:
        """The training that answers the learner; None until it exists."""
        return self._training

    @training.setter
    def training(self, training: Training) -> None:
        self._training = training
        self._probes.ready = True

    def opened(self) -> None:
        """Become ready although there is no learner yet, because the preflight samples."""
        self._probes.ready = True

    def app(self) -> web.Application:
        """The application to serve."""
        app = web.Application(middlewares=[self._authenticate], client_max_size=MAX_BODY)
        app.router.add_get("/v1/batch", self._batch)
        app.router.add_post("/v1/steps", self._steps)
        self._probes.add(app)
        return app

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        wanted = f"Bearer {self._key}".encode()
        if request.path.startswith("/v1/") and not hmac.compare_digest(given, wanted):
            return problem(401, "Unauthorized", UNAUTHORIZED)
        if request.path.startswith("/v1/"):
            known(request)
        return await handler(request)

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        try:
            step = int(request.query["step"])
            wait = float(request.query.get("wait", POLL_SECONDS))
        except (KeyError, ValueError):
            return problem(400, "BadRequest", "give the step to make: /v1/batch?step=1&wait=30")
        if self.training is None:
            return problem(503, names.STARTING, "the coordinator is still starting")
        try:
            found = await self.training.wait_for_batch(step, min(max(0.0, wait), POLL_SECONDS))
        except StepConflictError as conflict:
            return problem(409, "StepMismatch", str(conflict))
        except JobError as fault:
            return problem(503, fault.termination.reason, str(fault))
        if found is None:
            return web.Response(status=204)
        if isinstance(found, Finished):
            self.has_sent_finished = True
            return web.json_response(text=found.model_dump_json(), status=410)
        found = found.model_copy(update={"waits": self.training.waits_of(found)})
        # The tokens take megabytes, so a thread packs them while episodes go on.
        packed = await asyncio.to_thread(_packed, found)
        headers = {"Content-Encoding": "gzip"}
        return web.Response(body=packed, content_type="application/json", headers=headers)

    async def _steps(self, request: web.Request) -> web.StreamResponse:
        try:
            report = await _report(request)
        except BodyTooLargeError as error:
            return problem(413, "BodyTooLarge", f"the report has {error}")
        except BodyTimeoutError as error:
            return problem(408, "BodyTooSlow", str(error))
        except (OutOfBoundsError, web.RequestPayloadError) as error:
            return problem(400, "BadRequest", f"the report cannot be read: {shortened(str(error), 500)}")
        except ValidationError as error:
            return problem(400, "BadRequest", f"not a StepReport: {explained(error)}")
        if self.training is None:
            return problem(503, names.STARTING, "the coordinator is still starting")
        try:
            await self.training.report(report)
        except StepConflictError as conflict:
            return problem(409, "StepMismatch", str(conflict))
        except JobError as fault:
            return problem(503, fault.termination.reason, str(fault))
        return web.Response(status=204)


async def _report(request: web.Request) -> StepReport:
    raw = await body(request, MAX_BODY)
    found = await asyncio.to_thread(json_within, raw, MAX_BODY)
    return StepReport.model_validate(found)


def _packed(batch: Batch) -> bytes:
    return gzip.compress(batch.model_dump_json().encode(), compresslevel=1)


def problem(status: int, reason: str, message: str) -> web.Response:
    """An answer with an error status."""
    answer = Problem(reason=reason, message=message, permanent=status in (400, 401, 409, 413))
    headers = {"Retry-After": "1"} if status == 503 else {}
    return web.json_response(text=answer.model_dump_json(), status=status, headers=headers)
