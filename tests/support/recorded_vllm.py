"""Records `/metrics` of a real vLLM under load once a second, and replays them at the same pace.

    python tests/support/recorded_vllm.py      # record again, with the vLLM of this environment (2 minutes)

The record has only the families that the dashboards show or the coordinator reads.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).parent / "recorded_vllm.txt.gz"
SECONDS = 45
AT_ONCE = 24
"""Requests at the same time: more than the engine's batch has room for, so that some wait."""
BATCH = 16
NEXT = "# next second\n"


def recorded() -> list[str]:
    """The recorded metrics, one text for each second."""
    return gzip.decompress(FILE.read_bytes()).decode().split(NEXT)


class Replay:
    """Replays the record from now on. After its end, the last second is repeated."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._seconds = recorded()

    def text(self) -> str:
        """The metrics of the current second."""
        at = int(time.monotonic() - self._begun)
        return self._seconds[min(at, len(self._seconds) - 1)]


def names() -> set[str]:
    """The families that the dashboards show, and those that the coordinator reads."""
    from headway_coordinator.engines.concurrency import KV_USE, PREEMPTIONS, WAITING

    found = {KV_USE, PREEMPTIONS, WAITING}
    for path in (ROOT / "charts/headway/files/dashboards").glob("*.json"):
        found |= set(re.findall(r"vllm:\w+", path.read_text()))
    return {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in found}


def kept(text: str, wanted: set[str]) -> str:
    """The lines of `text` that belong to these families."""
    chosen = re.compile(rf"(# (HELP|TYPE) )?({'|'.join(sorted(wanted))})(_total|_bucket|_count|_sum)?[{{ ]")
    return "".join(f"{line}\n" for line in text.splitlines() if chosen.match(line))


def record() -> None:
    """Start a server, let it sample, and record its metrics."""
    from rollout_server import RolloutServer, publish_adapter, version
    from tiny_model import write_model

    from headway_api.model_names import adapter_name

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        base = write_model(folder / "base", seed=0)
        engine = {"extraArgs": ["--max-num-seqs", str(BATCH)]}
        rollout = {"engine": engine, "sampling": {"maxTokens": 32}, "maxConcurrency": 16}
        model = {"lora": {"rank": 8, "alpha": 16}}
        with RolloutServer(folder / "server", base, model=model, rollout=rollout) as server:
            server.wait_ready()
            manifest = publish_adapter(folder / "store", base, version(1), seed=1)
            assert server.post(manifest).ready
            ending = threading.Event()

            def sample(number: int) -> None:
                rng = random.Random(number)
                prompt = [3 + (7 * number + at) % 90 for at in range(60)]
                while not ending.is_set():
                    cut = rng.randrange(20, 60)
                    tokens = [*prompt[:cut], rng.randrange(3, 90)]
                    server.generate(adapter_name(manifest.version), tokens, max_tokens=rng.randrange(8, 160))
                    ending.wait(rng.expovariate(2))

            clients = [threading.Thread(target=sample, args=(number,)) for number in range(AT_ONCE)]
            for client in clients:
                client.start()
            scrapes = []
            for _ in range(SECONDS):
                time.sleep(1)
                scrapes.append(server.metrics())
            ending.set()
            for client in clients:
                client.join()
    series = [line for line in scrapes[-1].splitlines() if not line.startswith("#")]
    wanted = names()
    text = NEXT.join(kept(each, wanted) for each in scrapes)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
    summary = {
        "series": len(series),
        "kept": len(kept(scrapes[-1], wanted).splitlines()),
        "bytes": FILE.stat().st_size,
    }
    print(json.dumps(summary), file=sys.stderr)


if __name__ == "__main__":
    record()
