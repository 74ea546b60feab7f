"""An agent that reports values which no metric can hold, and then its episode's reward.

It runs beside the example's service, from the environment's image.
"""

from __future__ import annotations

import os
import signal
from http.server import ThreadingHTTPServer

import service  # type: ignore[import-not-found]
from chat import EpisodeEndedError, post  # type: ignore[import-not-found]

from headway_api.document import Json

GREAT: tuple[Json, ...] = ({"Rewards": [1e200]}, {"Rewards": [-1e200]}, {"Metrics": {"gain": 1e200}})


def play(task: Json) -> None:
    """Play one episode. A metric of its last report counts the reports that were refused by name."""
    metadata = task["metadata"]
    endpoint = metadata["endpoint"]
    name = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
    try:
        reward = service.judge(task["instance"], endpoint)
        post(f"{endpoint}/complete-rollout", name | {"Status": "ready"})
        report = name | {"Rewards": [reward.value], "Metrics": reward.metrics}
        refused = sum(is_refused(endpoint, report | great) for great in GREAT)
        counts = {"sent": len(GREAT), "refused": refused}
        post(f"{endpoint}/update-reward", report | {"Metrics": reward.metrics | counts})
    except EpisodeEndedError as ended:
        service.failed(endpoint, name, str(ended))


def is_refused(endpoint: str, report: Json) -> bool:
    """Return whether a report is refused as out of range."""
    try:
        post(f"{endpoint}/update-reward", report)
    except EpisodeEndedError as ended:
        return "reward_out_of_range" in str(ended)
    return False


if __name__ == "__main__":
    service.play = play
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ThreadingHTTPServer(("", service.PORT), service.Handler).serve_forever()
