"""Finds out what a scraper in a pod receives. It runs in that pod, with only Python's standard library:

    kubectl exec -i POD -- python3 - TARGETS < scrape_probe.py

TARGETS is JSON: name -> address of a /metrics. The program prints one JSON object: name -> names of the
metric families there, or null if nothing answers.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

PATIENCE_S = 8.0
"""How long to wait for an answer. A dropped packet gets none, so each refusal takes this long.

All targets are asked at once.
"""


def scrape(url: str) -> list[str] | None:
    """Return the names of the metric families that an address serves; None if it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return None
    return sorted({line.split()[2] for line in lines if line.startswith("# TYPE ")})


def scrape_all(targets: dict[str, str]) -> dict[str, list[str] | None]:
    """Return what `scrape` finds at each target."""
    with ThreadPoolExecutor(len(targets)) as threads:
        return dict(zip(targets, threads.map(scrape, targets.values()), strict=True))


if __name__ == "__main__":
    print(json.dumps(scrape_all(json.loads(sys.argv[1]))))
