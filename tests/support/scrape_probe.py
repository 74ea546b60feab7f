"""The answers that a scraper in a pod receives; runs there, and needs only Python's standard library:

    kubectl exec -i POD -- python3 - TARGETS < scrape_probe.py

TARGETS is JSON: name -> address of a /metrics. One JSON object is printed: name -> names of the metric
families there, or null where nothing answers.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

PATIENCE_S = 8.0
"""Dropped packets are never answered, so this is what a refusal costs; all targets are asked at once."""


def scrape(url: str) -> list[str] | None:
    """Names of the families that an address shows."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return None
    return sorted({line.split()[2] for line in lines if line.startswith("# TYPE ")})


def scrape_all(targets: dict[str, str]) -> dict[str, list[str] | None]:
    """What each target answers."""
    with ThreadPoolExecutor(len(targets)) as threads:
        return dict(zip(targets, threads.map(scrape, targets.values()), strict=True))


if __name__ == "__main__":
    print(json.dumps(scrape_all(json.loads(sys.argv[1]))))
