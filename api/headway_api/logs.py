"""Logs each event as one line of JSON on stdout."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

LONGEST: Final = 16 * 1024
"""Maximum characters of one text in a line. A longer text keeps its start and its end."""


def line(event: str, fields: Mapping[str, object], *, level: str = "info", at: float | None = None) -> str:
    """One event as a line: time, level, event, then its fields, with texts cut to `LONGEST`.

    Args:
        at: seconds since the epoch; None is now.
    """
    moment = time.time() if at is None else at
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"
    whole = {"time": stamp, "level": level, "event": event} | dict(fields)
    return json.dumps({name: _cut(value) for name, value in whole.items()}, default=str)


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        level = record.levelname.lower()
        return line(record.getMessage(), fields, level=level, at=record.created)


def _cut(value: Any) -> Any:
    """Shorten a text to `LONGEST`, because fields quote text from outside."""
    if not isinstance(value, str) or len(value) <= LONGEST:
        return value
    return f"{value[: LONGEST // 2]} ... {value[-LONGEST // 2 :]}"


def setup(level: int | str = logging.INFO) -> None:
    """Send everything at `level` and above to stdout."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Line())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("aiohttp.access", "botocore", "urllib3", "mlflow", "transformers", "renderers.base"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def event(logger: logging.Logger, what: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log `what` happened, with its details."""
    logger.log(level, what, extra={"fields": fields})
