"""Recounts a job's tokens and their cost, only from its stored trajectories and step reports.

    recount.py s3://bucket/runs/NAMESPACE/NAME/UID [--endpoint-url URL] [--region NAME] [--prices FILE]
               [--price CLASS=USD_A_MILLION ...] [--method NAME] [--status FILE] [--json]

The script is independent of Headway on purpose. It uses the standard library and boto3, and none of the
product's own code. So it can compare a bill with the tokens that were really sampled and trained. It reads
`trajectories/`, `preflight-judgements/` and `steps/` (not `usage/`), and follows the rules in the
documentation:

* An episode that completed, was truncated, or failed by its agent is billed. For each turn, prompt tokens
that
  the engine had not cached are `prefill`, cached ones are `cachedPrefill`, and sampled tokens are `sample`.
  In a validation or an evaluation, the evaluation's classes replace these three.
* In a group that an endpoint sampled (`sampled_by`), the tokens of every turn are `endpointPrompt` and
  `endpointSample`, also in retried and lost episodes. None of them is discarded, and the group has no rows.
* Tokens of questions to judges are `judgePrompt` and `judgeSample`. Episodes, groups and scripts of the
preflight
  ask such questions. They count whatever the outcome of the episode or group.
* In a group that was not sampled, because stored episodes were scored again, no token is counted.
* An episode that was retried or stayed InfraError is not billed. An episode of a training group with fewer
  than two scored episodes is not billed either. The tokens that such an episode prefilled and sampled are
  `discarded`.
* `train` counts each group that a step report acknowledges. It counts all tokens of the rows of the group's
  scored episodes, or none if the group has no gradient. Each report must have the same number, and all
  reports together name a group once. With most advantage methods, a group has no gradient if its rewards are
  equal up to rounding. For the other methods (`--method`), the report decides whether the group has a
  gradient.

`--status` takes the job as `kubectl get rltj NAME -o json` prints it. The script fails if status and recount
differ.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PRICES: dict[str, str | None] = {
    "prefill": "0.13",
    "cachedPrefill": "0.026",
    "sample": "0.40",
    "train": "0.40",
    "discarded": "0",
    "evaluationPrefill": "0.13",
    "evaluationCachedPrefill": "0.026",
    "evaluationSample": "0.40",
    "endpointPrompt": None,
    "endpointSample": None,
    "judgePrompt": None,
    "judgeSample": None,
}
"""The default price book, in US dollars per million tokens. `--prices` replaces it. A class with None has no
price.
"""
STATUS = {
    "prefill": "prefillTokens",
    "cachedPrefill": "cachedPrefillTokens",
    "sample": "sampleTokens",
    "train": "trainTokens",
    "discarded": "discardedTokens",
    "evaluation": "evaluationTokens",
    "endpoint": "endpointTokens",
    "judge": "judgeTokens",
}
INFRA_ERROR = "InfraError"
BY_REWARDS = ("group_based", "gpg", "opo", "rloo")
"""Methods for which a group has a gradient if and only if its rewards differ."""


class Folder:
    """Objects below a `file://` root."""

    def __init__(self, root: str) -> None:
        self._root = Path(urlsplit(root).path)

    def read(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Name and content of every object below `prefix`."""
        for path in sorted((self._root / prefix).rglob("*.json*")):
            yield path.name, path.read_bytes()


class Bucket:
    """Objects below an `s3://` root."""

    def __init__(self, root: str, endpoint_url: str | None, region: str | None) -> None:
        import boto3

        parts = urlsplit(root)
        self._bucket, self._root = parts.netloc, parts.path.strip("/")
        self._s3 = boto3.client("s3", endpoint_url=endpoint_url, region_name=region)

    def read(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Name and content of every object below `prefix`."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._root}/{prefix}/"
        )
        for item in (item for page in pages for item in page.get("Contents", [])):
            body = self._s3.get_object(Bucket=self._bucket, Key=item["Key"])["Body"].read()
            yield item["Key"].rpartition("/")[2], body


def count_group(group: dict[str, Any], counted: Counter[str]) -> None:
    """Add the tokens of one group's turns to `counted`."""
    sampled_by = group.get("sampled_by", "servers")
    count_judgements(group, counted)
    if sampled_by == "endpoint":
        count_elsewhere(group, counted)
    if sampled_by != "servers":
        return
    evaluation = group["purpose"] != "train"
    scored = [episode for episode in group["episodes"] if episode["outcome"] != INFRA_ERROR]
    kept = evaluation or (len(scored) >= 2 and not group.get("abandoned"))
    for episode in group["episodes"]:
        billed = kept and episode["outcome"] != INFRA_ERROR
        count_episode(episode, counted, billed=billed, evaluation=evaluation)
    for episode in group["discarded"]:
        count_episode(episode, counted, billed=False, evaluation=evaluation)


def count_judgements(group: dict[str, Any], counted: Counter[str]) -> None:
    """Add the tokens of judges for the group and its episodes."""
    for asker in [group, *group["episodes"], *group["discarded"]]:
        count_asked(asker.get("judgements", []), counted)


def count_asked(judgements: list[dict[str, Any]], counted: Counter[str]) -> None:
    """Add the tokens of questions to judges."""
    for asked in judgements:
        counted["judgePrompt"] += asked["prompt_tokens"]
        counted["judgeSample"] += asked["sampled_tokens"]


def count_elsewhere(group: dict[str, Any], counted: Counter[str]) -> None:
    """Add the tokens of a group that an endpoint sampled."""
    for episode in group["episodes"] + group["discarded"]:
        if episode["rows"]:
            raise SystemExit(f"{episode['episode_id']}: an endpoint sampled it, but it has rows")
        counted["endpointPrompt"] += sum(turn["prompt_tokens"] for turn in episode["turns"])
        counted["endpointSample"] += sum(turn["sampled_tokens"] for turn in episode["turns"])


def count_episode(episode: dict[str, Any], counted: Counter[str], *, billed: bool, evaluation: bool) -> None:
    """Add the tokens of one episode's turns, and check that its rows have as many sampled tokens."""
    for turn in episode["turns"]:
        fresh = turn["prompt_tokens"] - turn["cached_tokens"]
        if not billed or not turn.get("delivered", True):
            counted["discarded"] += fresh + turn["sampled_tokens"]
            continue
        names = ("prefill", "cachedPrefill", "sample")
        if evaluation:
            names = ("evaluationPrefill", "evaluationCachedPrefill", "evaluationSample")
        for name, tokens in zip(names, (fresh, turn["cached_tokens"], turn["sampled_tokens"]), strict=True):
            counted[name] += tokens
    in_rows = sum(sum(row["mask"]) for row in episode["rows"])
    trained = [
        turn for turn in episode["turns"] if turn.get("delivered", True) and not turn.get("guided", False)
    ]
    in_turns = sum(turn["sampled_tokens"] for turn in trained)
    if in_rows != in_turns:
        raise SystemExit(f"{episode['episode_id']}: {in_turns} tokens sampled, but {in_rows} in its rows")


def trainable_tokens(group: dict[str, Any], method: str) -> set[int]:
    """The numbers of trained tokens that a step report may give for a training group."""
    scored = [episode for episode in group["episodes"] if episode["outcome"] != INFRA_ERROR]
    rewards = [episode["reward"] for episode in scored]
    alike = not rewards or max(rewards) - min(rewards) <= 1e-9 * max(1.0, *map(abs, rewards))
    whole = sum(len(row["tokens"]) for episode in scored for row in episode["rows"] if any(row["mask"]))
    return {0, whole} if method not in BY_REWARDS else {0 if alike else whole}


def count_steps(reports: list[dict[str, Any]], trainable: dict[str, set[int]], counted: Counter[str]) -> None:
    """Add the tokens that the steps trained. A report that contradicts the trajectories is an error."""
    seen: set[str] = set()
    for report in reports:
        for group, claimed in report["train_tokens"].items():
            if group in seen:
                raise SystemExit(f"{group} is trained twice, the second time in step {report['step']}")
            seen.add(group)
            if claimed not in trainable[group]:
                found = " or ".join(map(str, sorted(trainable[group])))
                raise SystemExit(f"{group}: {claimed} tokens trained, but {found} in its rows")
            counted["train"] += claimed


def recount(source: Folder | Bucket, method: str) -> Counter[str]:
    """Count all tokens, by class of the bill."""
    counted: Counter[str] = Counter(dict.fromkeys(PRICES, 0))
    trainable: dict[str, set[int]] = {}
    for _, data in source.read("trajectories"):
        group = json.loads(gzip.decompress(data))
        count_group(group, counted)
        if group["purpose"] == "train":
            trainable[group["group_id"]] = trainable_tokens(group, method)
    for _, data in source.read("preflight-judgements"):
        count_asked(json.loads(data)["judgements"], counted)
    count_steps([json.loads(data) for _, data in source.read("steps")], trainable, counted)
    return counted


def shown(amount: Decimal) -> str:
    """An amount as text, rounded to a hundredth of a cent, with at least two digits after the point."""
    text = f"{amount:.4f}"
    return text[:-2] if text.endswith("00") else text


def summary(counted: Counter[str], prices: Mapping[str, str | None]) -> dict[str, Any]:
    """Tokens by the status's names, tokens and cost by class, and the total cost."""
    evaluation = ("evaluationPrefill", "evaluationCachedPrefill", "evaluationSample")
    tokens = {name: counted[name] for name in ("prefill", "cachedPrefill", "sample", "train", "discarded")}
    tokens["evaluation"] = sum(counted[name] for name in evaluation)
    tokens["endpoint"] = counted["endpointPrompt"] + counted["endpointSample"]
    tokens["judge"] = counted["judgePrompt"] + counted["judgeSample"]
    known = {name: Decimal(price) for name, price in prices.items() if price is not None}
    costs = {name: known[name] * counted[name] / 1_000_000 for name in PRICES if name in known}
    return {
        "tokens": tokens,
        "byClass": {name: counted[name] for name in PRICES},
        "costByClass": {name: str(cost) for name, cost in costs.items()},
        "unpriced": sorted(name for name in PRICES if name not in known and counted[name]),
        "cost": shown(sum(costs.values(), Decimal(0))),
    }


def differences(found: dict[str, Any], usage: dict[str, Any]) -> list[str]:
    """The differences between the recount and `.status.usage`."""
    wrong = [
        f"{field}: status says {usage.get(field, 0)}, the trajectories {found['tokens'][name]}"
        for name, field in STATUS.items()
        if usage.get(field, 0) != found["tokens"][name]
    ]
    # The status adds `:MODEL` to a class if the model is not the job's own.
    unpriced = sorted({name.partition(":")[0] for name in usage.get("unpriced", [])})
    if unpriced != found["unpriced"]:
        wrong.append(f"unpriced: status says {unpriced}, the trajectories {found['unpriced']}")
    if usage.get("cost") != found["cost"]:
        wrong.append(f"cost: status says {usage.get('cost')}, the trajectories {found['cost']}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", help="the job's folder: status.artifacts.uri")
    parser.add_argument("--endpoint-url", help="address of an S3-compatible store")
    parser.add_argument("--region")
    parser.add_argument("--prices", type=Path, help="JSON object, class -> US dollars a million tokens")
    parser.add_argument("--price", action="append", default=[], metavar="CLASS=USD", help="one class's price")
    parser.add_argument(
        "--method",
        default=BY_REWARDS[0],
        help="the job's algorithm.advantage.method; group_based if not given",
    )
    parser.add_argument(
        "--status", type=Path, help="the job as JSON, to compare with; - reads standard input"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    prices = PRICES | (json.loads(options.prices.read_text()) if options.prices else {})
    prices |= dict(price.split("=", 1) for price in options.price)
    local = urlsplit(options.root).scheme == "file"
    source = Folder(options.root) if local else Bucket(options.root, options.endpoint_url, options.region)
    found = summary(recount(source, options.method), prices)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, tokens in found["byClass"].items():
            cost = found["costByClass"].get(name)
            shown_cost = "    unpriced" if cost is None else f"{Decimal(cost):>12.6f} USD"
            print(f"{name:26}{tokens:>14,}   {shown_cost}")
        print(f"{'cost':26}{'':14}   {found['cost']:>12} USD")
    if options.status:
        text = sys.stdin.read() if str(options.status) == "-" else options.status.read_text()
        wrong = differences(found, json.loads(text)["status"]["usage"])
        print("\n".join(wrong) or "status agrees", file=sys.stderr)
        return 1 if wrong else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
