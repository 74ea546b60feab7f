"""`python -m headway_sandbox.broker`: one job's broker. It connects the other modules and has no logic."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from pydantic import ValidationError

from headway_api import config as job_config
from headway_api import keys, logs, names
from headway_api.exits import JobError, leave
from headway_api.keys import Key, Keys
from headway_sandbox.broker import pods, pool
from headway_sandbox.broker.kube import Pods
from headway_sandbox.broker.leases import Leases
from headway_sandbox.broker.metrics import Metrics
from headway_sandbox.broker.processes import ProcessPods
from headway_sandbox.broker.service import Service
from headway_sandbox.broker.warm import WarmPool
from headway_wire.listening import listening

TEMPLATE_FILE = "sandbox-template.json"
STARTING_AT_ONCE = 16
"""Maximum pods that are created but do not answer yet. A node can start only a few a second."""
SHUTDOWN_SECONDS = 1.0

_log = logging.getLogger(__name__)


def limits(kind: pods.SandboxKind) -> pool.Limits:
    """Limits of the pool; the maximum defaults to the number of episodes in flight."""
    wanted = kind.environment.sandbox.warm_pool
    maximum = wanted.max or kind.config.max_episodes
    return pool.Limits(min(wanted.min, maximum), maximum, STARTING_AT_ONCE)


def load(environ: Mapping[str, str]) -> tuple[pods.SandboxKind, pods.Platform]:
    """Read the mounted configuration. It says whether the broker has the job's own sandboxes or a suite's.

    Raises:
        JobError: the configuration is missing or unreadable.
    """
    file = Path(environ.get(names.ENV_CONFIG, names.CONFIG_FILE))
    try:
        kind = pods.SandboxKind(job_config.load_any(environ), environ.get(names.ENV_SUITE))
        return kind, pods.Platform.parse((file.parent / TEMPLATE_FILE).read_text())
    except (OSError, ValidationError, ValueError, KeyError) as error:
        raise JobError("ConfigUnreadable", f"{file.parent}: {error}") from error


def processes(environ: Mapping[str, str]) -> ProcessPods | None:
    """What starts sandboxes as processes, for a job on this machine; None for a job on a cluster."""
    if (modules := environ.get(names.ENV_ENVIRONMENT_MODULES)) is None:
        return None
    folder = Path(environ[names.ENV_JOB_FOLDER])
    # Hide all jobs' folders: those of other jobs have their keys in them.
    hidden = [folder.parent if folder.parent.name == names.LOCAL_JOBS else folder]
    return ProcessPods(Path(modules), hidden, int(environ[names.ENV_SANDBOX_NETWORK]))


async def serve(kind: pods.SandboxKind, platform: pods.Platform, own_keys: Keys) -> None:
    """Run until SIGTERM. Sandbox pods stay: the next broker uses them, or the job's deletion removes them."""
    config = kind.config
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics(config)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        made = processes(os.environ)
        api = made or Pods.in_cluster(http, config.namespace)
        warm = WarmPool(api, http, kind, platform, limits(kind), metrics)
        leases = Leases(warm, http, own_keys[Key.LEASES], metrics)
        app = Service(warm, leases, metrics, own_keys[Key.COORDINATOR_TO_BROKER]).app()
        async with listening(app, names.PORT_BROKER, drain=SHUTDOWN_SECONDS):
            logs.event(_log, "serving", job=config.name, suite=kind.suite, limits=str(limits(kind)))
            work = [asyncio.create_task(warm.run()), asyncio.create_task(leases.run())]
            waiting = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([*work, waiting], return_when=asyncio.FIRST_COMPLETED)
            for task in (*work, waiting):
                task.cancel()
        if made is not None:
            await made.close()
        for task in done - {waiting}:
            task.result()


def main() -> None:
    """Entry point."""
    logs.setup()
    try:
        kind, platform = load(os.environ)
        asyncio.run(serve(kind, platform, keys.load(os.environ, names.BROKER)))
    except JobError as error:
        leave(error)


if __name__ == "__main__":
    main()
