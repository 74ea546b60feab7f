"""Runs `headway` for a client's local job, and ends when the client's process ends.

    python -m headway_cli.client.child_main run FILE --local ...

Its stdin is a pipe that the client's process holds open and never writes to. When that process ends, for
whatever reason, the pipe closes. This process then sends itself SIGTERM, which ends the job in order.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from headway_cli import app


def main() -> None:
    """Entry point."""
    threading.Thread(target=_end_with_input, args=(sys.stdin.fileno(),), daemon=True).start()
    app.main()


def _end_with_input(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
