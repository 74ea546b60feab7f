"""How long a coordinator may take to end its job once report.json is written.

The coordinator gives up each wait below after its limit. The operator adds the sum of the limits to a job's
deadline. So a job whose report is written fails by its deadline only if the coordinator hangs.
"""

from __future__ import annotations

from typing import Final

PAGE_SECONDS: Final = 300.0
"""Maximum seconds for writing report.html."""
TRACKING_SECONDS: Final = 360.0
"""Maximum seconds for logging to MLflow."""
LAST_STATUS_SECONDS: Final = 600.0
"""Maximum seconds for writing the last status: an API server may be down for minutes during an upgrade."""
LEARNER_END_SECONDS: Final = 60.0
"""Maximum seconds that a finished coordinator waits until it has sent the learner `records.Finished`."""
SPANS_SECONDS: Final = 15.0
"""Maximum seconds for sending the remaining spans to a receiver of OpenTelemetry traces."""
LAST_SCRAPE_SECONDS: Final = 30.0
"""Maximum seconds that a finished coordinator waits for the last scrape: Prometheus' usual interval."""
EXIT_SECONDS: Final = 135.0
"""Seconds for writing the status that names report.json, for closing servers, and for the end of the pod."""
FINISHING_SECONDS: Final = (
    PAGE_SECONDS
    + TRACKING_SECONDS
    + LAST_STATUS_SECONDS
    + LEARNER_END_SECONDS
    + SPANS_SECONDS
    + LAST_SCRAPE_SECONDS
    + EXIT_SECONDS
)
"""Seconds that a job may run beyond its deadline once report.json is written."""
