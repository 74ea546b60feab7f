"""The process of a local job that a client began: `headway`, for as long as the client's process lives.

    python -m headway_cli.client.kept run FILE --local ...

Its input is a pipe that the client's process holds open and never writes to. However that process ends, the
pipe closes, and this process ends the job as SIGTERM does.
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
