"""Connects cache, informers, queue and workers. This is the operator's core, and does not use kopf."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

import urllib3

from headway_api import logs, names
from headway_api.document import Json
from headway_operator.apply import PlanBlockedError
from headway_operator.cache import Cache, Ref, particulars, ref_of
from headway_operator.config import OperatorConfig
from headway_operator.informer import Informer, sources
from headway_operator.jobs import Jobs
from headway_operator.kube import JOBS, Api, ApiError
from headway_operator.plan import planner
from headway_operator.queue import KeyedQueue, QueueClosedError
from headway_operator.reconcile import Key, Reconciler
from headway_operator.sharing import BudgetAllocator, budget_of
from headway_operator.telemetry import SUCCESS, Telemetry
from headway_operator.wire import UNREAD

log = logging.getLogger(__name__)

SANDBOX_PAUSE: Final = 2.0
"""Sandbox pods change every second. Their changes reconcile a job at most once in this many seconds."""
SHARE_PAUSE: Final = 1.0
"""Changes in jobs' statuses share the namespace's budget again at most once in this many seconds."""
UNREAD_PAUSE: Final = 5.0
"""Even a failed read costs time. An unreadable job is read again at most once in this many seconds."""
SYNC_SECONDS: Final = 120.0
UNREADABLE: Final = "Unreadable"
"""Result of reconciling a job that cannot be read whole. The job's status says so, so there is no retry."""
WEDGED_SECONDS: Final = 300.0
"""If a key has been due for this many seconds, the workers are stuck and the process is unhealthy."""


class Controller:
    """Reconciles jobs and budgets from `start` to `stop`.

    The kopf handlers report changed objects through `custom_changed` and `custom_deleted`. They pass only the
    object's identity; a worker fetches the object.
    """

    def __init__(self, api: Api, platform: OperatorConfig, telemetry: Telemetry) -> None:
        self._api = api
        self._platform = platform
        self._telemetry = telemetry
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.cache = Cache()
        self.queue: KeyedQueue[Key] = KeyedQueue()
        self._jobs = Jobs(api, self.cache)
        self._reconciler = Reconciler(api, self.cache, platform, telemetry.applied, self._jobs.latest)
        self._allocator = BudgetAllocator(
            api, self.cache, platform.manager, self._jobs.latest, self._jobs.of_namespace
        )
        self._informers = [
            Informer(api, self.cache, source, self._child_changed)
            for source in sources(platform.watch_namespaces)
        ]
        telemetry.depth.set_function(self.queue.depth)
        telemetry.count_jobs(self.cache, platform.manager)

    def start(self) -> None:
        """List all custom resources and their objects, then start the workers.

        Raises:
            ApiError: the custom resources cannot be listed; most often their definitions are missing.
            TimeoutError: the children could not be listed in time.
        """
        self._list_jobs()
        for informer in self._informers:
            informer.start()
        deadline = time.monotonic() + SYNC_SECONDS
        for informer in self._informers:
            if not informer.synced.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(
                    f"objects could not be listed within {SYNC_SECONDS:.0f} s; see the log for refusals"
                )
        loops = [self._work] * self._platform.workers + [self._resync]
        self._threads = [threading.Thread(target=loop, name=loop.__name__, daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the reconciles under way and write nothing more."""
        self._stopping.set()
        self.queue.close()
        for informer in self._informers:
            informer.stop()
        for thread in self._threads:
            thread.join(timeout=20)

    def custom_changed(self, identity: Json) -> None:
        """Queue a job or a budget that kopf reported."""
        ref = self._jobs.announced(identity)
        known = self.cache.get(*ref)
        pause = UNREAD_PAUSE if known is not None and UNREAD in known else 0.0
        self.queue.add(ref, pause)
        self._wake(ref)

    def custom_deleted(self, identity: Json) -> None:
        """Queue a job or a budget that was deleted. The garbage collector deletes its objects."""
        ref = self._jobs.gone(identity)
        self.queue.add(ref)
        self._wake_budget(ref)

    def _wake(self, ref: Ref) -> None:
        """Queue the budget of this job's namespace, and the jobs that wait for its weights."""
        self._wake_budget(ref)
        kind, namespace, name = ref
        if kind != names.TRAINING_KIND:
            return
        for waiting in (job for kind in JOBS for job in self.cache.of_kind(kind.kind)):
            if waiting["metadata"]["namespace"] == namespace and name in planner.sources(waiting):
                self.queue.add(ref_of(waiting))

    def _wake_budget(self, ref: Ref) -> None:
        budget = budget_of(ref[1])
        if ref != budget and self._jobs.is_known(budget):
            self.queue.add(budget, SHARE_PAUSE)

    def issue(self) -> str:
        """A fault of this process that a restart would fix; an empty string if there is none."""
        if not self._threads:
            return ""
        silent = min((time.monotonic() - informer.last_event_at for informer in self._informers), default=0.0)
        if silent > self._platform.liveness_seconds:
            return f"no watch has received anything from the API server for {silent:.0f} s"
        if (waited := self.queue.oldest_wait()) > WEDGED_SECONDS:
            return f"a job has been waiting for a worker for {waited:.0f} s"
        return ""

    def _child_changed(self, body: Json) -> None:
        labels = body["metadata"].get("labels", {})
        if name := labels.get(names.LABEL_JOB_NAME):
            pause = SANDBOX_PAUSE if labels.get(names.LABEL_COMPONENT) == names.SANDBOX else 0.0
            # Objects that an older version of the operator created have no label for the job's kind.
            kind = labels.get(names.LABEL_JOB_KIND, names.TRAINING_KIND)
            self.queue.add((kind, body["metadata"]["namespace"], name), pause)

    def _work(self) -> None:
        while True:
            try:
                key = self.queue.get()
            except QueueClosedError:
                return
            if key is not None:
                self._process(key)

    def _process(self, key: Key) -> None:
        started = time.monotonic()
        again, result = self._reconcile_once(key)
        self._telemetry.reconciled(time.monotonic() - started, result)
        if result not in (SUCCESS, UNREADABLE):
            self.queue.retry(key)
            return
        self.queue.done(key)
        if again is not None:
            self.queue.add(key, again)

    def _reconcile_once(self, key: Key) -> tuple[float | None, str]:
        """Reconcile once; returns the seconds until the next time, and the result of this reconcile."""
        try:
            if key[0] == names.BUDGET_KIND:
                jobs, again = self._allocator.share(key)
                for job in jobs:
                    self.queue.add(job)
                return again, SUCCESS
            again = self._reconciler.reconcile(key)
            known = self.cache.get(*key)
            return again, UNREADABLE if known is not None and UNREAD in known else SUCCESS
        except PlanBlockedError as blocked:
            reason, words = blocked.issue.reason, str(blocked)
            logs.event(
                log, "reconcile-blocked", logging.WARNING, **particulars(key), reason=reason, error=words
            )
            return None, blocked.issue.reason
        except (ApiError, urllib3.exceptions.HTTPError) as error:
            words = f"{type(error).__name__}: {error}"
            logs.event(log, "reconcile-failed", logging.WARNING, **particulars(key), error=words)
            return None, "ApiError"
        except Exception:
            # A bug that one job triggers must not stop the others; it is counted, logged and alerted on.
            log.exception("reconcile-bug", extra={"fields": particulars(key)})
            return None, "Bug"

    def _resync(self) -> None:
        while not self._stopping.wait(self._platform.resync_seconds):
            self._reconciler.forget()
            try:
                self._list_jobs()
            except (ApiError, urllib3.exceptions.HTTPError) as error:
                logs.event(log, "list-failed", logging.WARNING, error=str(error))

    def _list_jobs(self) -> None:
        """List and queue every job, whether or not an event announced it."""
        for ref in self._jobs.list(self._platform.watch_namespaces or (None,)):
            self.queue.add(ref)
