"""The operator's process, and the only module that imports kopf. Each kopf event queues the key of one job.

kopf watches only the custom resources, and no pods. The operator uses no kopf index, and no handler that
keeps state, since such handlers write annotations. kopf has no leader election, so it starts once this
replica holds the Lease. kopf sees only the identity of a job (see `session`). A worker reads the rest of the
job, with limits on size and depth.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import aiohttp
import kopf
from pydantic import ValidationError

from headway_api import logs, names
from headway_operator import kube
from headway_operator.cache import particulars
from headway_operator.config import OperatorConfig, load
from headway_operator.controller import Controller
from headway_operator.lease import Leadership
from headway_operator.session import session
from headway_operator.telemetry import Telemetry, serve
from headway_operator.wire import IDENTITY

log = logging.getLogger(__name__)

LISTED_TOGETHER: Final = 8
"""Jobs on one page of a list. The metadata of one job alone can exceed 1 MiB."""


def registry(controller: Controller) -> kopf.OperatorRegistry:
    """kopf's handlers, which pass every event of a custom resource to the controller."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.startup(registry=handlers)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.scanning.disabled = True
        settings.posting.enabled = False
        settings.watching.chunk_size = LISTED_TOGETHER
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 330
        settings.watching.inactivity_timeout = 70

    @kopf.on.login(registry=handlers)
    async def login(**arguments: Any) -> kopf.AiohttpSession | None:
        return _session(kopf.login_via_client(**arguments))

    for kind in kube.CUSTOM:
        kopf.on.event(names.GROUP, names.VERSION, kind.plural, registry=handlers)(
            _event_handler(controller, kind)
        )
    return handlers


def _session(found: kopf.ConnectionInfo | None) -> kopf.AiohttpSession | None:
    """The connection `found`, with a session that shows kopf only the identities of jobs."""
    if found is None:
        return None
    connector = aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context())
    return kopf.AiohttpSession(
        server=found.server,
        default_namespace=found.default_namespace,
        priority=found.priority,
        aiohttp_session=session(connector, found.as_http_headers(), trust_env=found.trust_env),
    )


def _event_handler(controller: Controller, kind: kube.ResourceKind) -> Callable[..., None]:
    def custom(*, type: str | None, body: kopf.Body, **_: Any) -> None:
        known = body["metadata"]
        identity = {key: known[key] for key in (*IDENTITY, "deletionTimestamp") if key in known}
        document = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": identity}
        if type == "DELETED":
            controller.custom_deleted(document)
        else:
            controller.custom_changed(document)

    return custom


def run(platform: OperatorConfig) -> None:
    """Wait for the Lease, then reconcile until SIGTERM."""
    api = kube.connect()
    telemetry = Telemetry()
    controller = Controller(api, platform, telemetry)
    serve(platform.port, telemetry, controller.issue, lambda: "")
    if platform.lease_namespace is None:
        _lead(controller, platform, telemetry)
        return
    leadership = Leadership(platform.lease_name, platform.lease_namespace)
    leadership.wait()
    try:
        _lead(controller, platform, telemetry)
    finally:
        leadership.release()


def _lead(controller: Controller, platform: OperatorConfig, telemetry: Telemetry) -> None:
    telemetry.leader.set(1)
    try:
        controller.start()
        asyncio.run(
            kopf.operator(
                registry=registry(controller),
                standalone=True,
                clusterwide=not platform.watch_namespaces,
                namespaces=platform.watch_namespaces,
            )
        )
    finally:
        controller.stop()
        telemetry.retire()


def _set_up_log(level: str) -> None:
    """Log one JSON object a line, including kopf's own records."""
    logs.setup(level)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf.objects").addFilter(_name_job)
    logging.captureWarnings(True)
    sys.excepthook = _died


def _died(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log the exception that ends the process in the same format as every other line."""
    log.critical("died", exc_info=(kind, error, trace))


def _name_job(record: logging.LogRecord) -> bool:
    """Name the object that kopf attaches to a record, in the fields that our own lines use."""
    if of := getattr(record, "k8s_ref", None):
        record.fields = particulars((of["kind"], of["namespace"], of["name"]))
    return True


def _stop(number: int, frame: object) -> None:
    """Exit on SIGTERM until kopf handles it. The first process of a container has no default handlers."""
    sys.exit(0)


def _end(failure: threading.ExceptHookArgs) -> None:
    """End the process when a thread dies: half an operator is worse than none."""
    fields = {"thread": failure.thread.name if failure.thread else None}
    log.critical("thread-died", exc_info=failure.exc_value, extra={"fields": fields})
    os._exit(1)


def main() -> int:
    """Entry point. The exit code is 1 if the configuration is refused, or the API server cannot be used."""
    _set_up_log(os.environ.get("LOG_LEVEL", "INFO"))
    threading.excepthook = _end
    signal.signal(signal.SIGTERM, _stop)
    try:
        platform = load(os.environ)
    except (OSError, ValidationError) as error:
        logs.event(log, "configuration-refused", logging.ERROR, error=str(error))
        return 1
    try:
        run(platform)
    except (kube.ApiError, TimeoutError) as error:
        logs.event(log, "api-unusable", logging.ERROR, error=str(error))
        return 1
    return 0
