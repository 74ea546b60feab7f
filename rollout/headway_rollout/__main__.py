"""`python -m headway_rollout`: the rollout server's process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from headway_api import config, judge_servers, keys, last_logs, logs, names
from headway_api.exits import JobError, leave
from headway_api.keys import Key
from headway_rollout.server import RolloutServer, Settings


def served(environ: Mapping[str, str]) -> config.ServedModel:
    """The model that this server loads: a judge's, a server set's of an RLEvalJob, or the trained one."""
    job = config.load_any(environ)
    if (judge := environ.get(names.ENV_JUDGE)) is not None:
        return judge_servers.served(job, judge)
    if isinstance(job, config.EvalConfig):
        return job.served(int(environ[names.ENV_SERVER_SET]))
    return job.served()


def main() -> None:
    """Serve until SIGTERM. If the server ends by itself, write the reason as termination message."""
    logs.setup()
    settings = Settings.read(os.environ)
    settings.cache.mkdir(parents=True, exist_ok=True)
    try:
        judges = names.ENV_JUDGE in os.environ
        own_keys = keys.load(os.environ, names.JUDGE if judges else names.ROLLOUT)
        last_logs.begin(os.environ, config.load_any(os.environ), own_keys.values(), names.ROLLOUT)
        logs.setup()
        asked = Key.COORDINATOR_TO_JUDGE if judges else Key.COORDINATOR_TO_ROLLOUT
        server = RolloutServer(served(os.environ), own_keys, settings, asked)
        asyncio.run(server.run())
    except JobError as error:
        leave(error)
    finally:
        last_logs.keep_at_end()


if __name__ == "__main__":
    main()
