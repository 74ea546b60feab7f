"""`python -m headway_rollout`: the rollout server's process."""

from __future__ import annotations

import asyncio
import os

from headway_api import config, logs
from headway_api.exits import JobError, leave
from headway_rollout.server import RolloutServer, Settings


def main() -> None:
    """Serve until told to stop; say why where it ends by itself."""
    logs.setup()
    settings = Settings.read(os.environ)
    settings.cache.mkdir(parents=True, exist_ok=True)
    server = RolloutServer(config.load(os.environ), config.load_token(os.environ), settings)
    try:
        asyncio.run(server.run())
    except JobError as error:
        leave(error)


if __name__ == "__main__":
    main()
