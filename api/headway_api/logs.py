"""One line of JSON an event on stdout."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

LONGEST: Final = 16 * 1024
"""Characters of one text in a line; of a longer one the start and the end are said."""


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line = {name: _cut(value) for name, value in line.items()}
        return json.dumps(line, default=str)


def _cut(value: Any) -> Any:
    """Text at a length that a line may have: fields quote what others wrote."""
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
    """Log `what` happened, with its particulars."""
    logger.log(level, what, extra={"fields": fields})
