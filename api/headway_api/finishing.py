"""How long a coordinator may take to end its job once report.json is written.

The coordinator gives up each wait after its bound. The operator adds their sum to a job's deadline, so only a
coordinator that hangs makes a measured job fail.
"""

from __future__ import annotations

from typing import Final

PAGE_SECONDS: Final = 300.0
"""The longest time for writing report.html."""
TRACKING_SECONDS: Final = 360.0
"""The longest time for logging to MLflow."""
LAST_WORD_SECONDS: Final = 600.0
"""How long to try to write the last status: an API server may be down for minutes during an upgrade."""
FAREWELL_SECONDS: Final = 60.0
"""The longest that a finished coordinator waits until the learner has received the end."""
SPANS_SECONDS: Final = 15.0
"""The longest time for sending the remaining spans to a receiver of OpenTelemetry's traces."""
LAST_SCRAPE_SECONDS: Final = 30.0
"""The longest that a finished coordinator waits for the last scrape. Prometheus usually scrapes as often."""
LEAVING_SECONDS: Final = 135.0
"""Time for the status that names report.json, for closing servers, and for the end of the pod."""
FINISHING_SECONDS: Final = (
    PAGE_SECONDS
    + TRACKING_SECONDS
    + LAST_WORD_SECONDS
    + FAREWELL_SECONDS
    + SPANS_SECONDS
    + LAST_SCRAPE_SECONDS
    + LEAVING_SECONDS
)
"""How much longer than its deadline a job may run once report.json is written."""
