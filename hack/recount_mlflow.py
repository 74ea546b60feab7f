"""Compares an evaluation's metrics in MLflow with its report, which recount_eval.py recomputes.

    recount_mlflow.py report.json TRACKING_URL EXPERIMENT

The script is independent of Headway and of MLflow's client on purpose. It uses only the standard library.
Every measure, every end of an interval and every paired difference of the report must be in the run of its
candidate. The script prints all differences, and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import isclose
from typing import Any
from urllib.parse import quote

Json = Any
TAG = "headway.dev/candidate"
ALL = "all"
ENDS = (("", "value"), ("_low", "low"), ("_high", "high"))
DIFFERENCE_ENDS = (*ENDS, ("_p_holm", "p_holm"))
TAKEN = re.compile(
    r"(mean|std|min|max)(_within_groups)?|(failed|succeeded)_rollouts|success_threshold|num_prompts"
    r"|rollouts_per_prompt|zero_frac|\w+_(rate|share)|pass_\w+_\d+"
)
AT_ONCE = 200
REQUEST_S = 30


def ask(url: str, body: Json = None) -> Json:
    """MLflow's answer to a GET request, or to a POST request if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
        return json.load(answer)


def runs(url: str, experiment: str, uid: str) -> dict[str, dict[str, float]]:
    """Candidate -> name of a metric -> its value, in the runs of the job with this uid."""
    api = url.rstrip("/") + "/api/2.0/mlflow"
    found = ask(f"{api}/experiments/get-by-name?experiment_name={quote(experiment, safe='')}")
    asked = {
        "experiment_ids": [found["experiment"]["experiment_id"]],
        "filter": f"tags.`headway.dev/uid` = '{uid}'",
        "max_results": AT_ONCE,
    }
    metrics = {}
    for run in ask(f"{api}/runs/search", asked).get("runs", []):
        tags = {each["key"]: each["value"] for each in run["data"].get("tags", [])}
        if TAG in tags:
            metrics[tags[TAG]] = {each["key"]: each["value"] for each in run["data"].get("metrics", [])}
    return metrics


def usable(name: str) -> str:
    """A task's name as part of a metric's name. It gets a hash if it must be changed or is already taken."""
    digest = sha256(name.encode()).hexdigest()[:8]
    if TAKEN.fullmatch(name):
        return f"{name}_{digest}"
    short = re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)[:120]
    return name if short == name else f"{short[:111]}_{digest}"


def plain(measure: str) -> str:
    """A measure's name as part of a metric's name. It gets a hash if it ends like the end of an interval."""
    if not re.fullmatch(r".*_(low|high|p_holm)", measure):
        return measure
    return f"{measure[:55]}_{sha256(measure.encode()).hexdigest()[:8]}"


def expected(name: str, candidate: Json, report: Json) -> Iterator[tuple[str, float]]:
    """Names and values of the metrics that a candidate's run must have."""
    for task, measures in candidate["measures"].items():
        behind = "" if task == ALL else f"/{usable(task)}"
        for measure, estimate in measures.items():
            for end, key in ENDS:
                if estimate[key] is not None:
                    yield f"eval/{plain(measure)}{end}{behind}", estimate[key]
    parts = [("", report["differences"])]
    for kind in ("suites", "tasks"):
        parts += [(f"/{usable(task)}", each["differences"]) for task, each in report.get(kind, {}).items()]
    for behind, differences in parts:
        for measure, by_candidate in differences.items():
            for end, key in DIFFERENCE_ENDS:
                if (value := by_candidate.get(name, {}).get(key)) is not None:
                    yield f"eval/difference/{plain(measure)}{end}{behind}", value


def compare(report: Json, shown: Mapping[str, Mapping[str, float]]) -> tuple[int, list[str]]:
    """The number of compared values, and the differences."""
    checked, wrong = 0, []
    for candidate in report["candidates"]:
        name = candidate["name"]
        if not candidate["tries"]:
            continue
        if name not in shown:
            wrong.append(f"MLflow has no run of candidate {name}")
            continue
        for metric, value in expected(name, candidate, report):
            checked += 1
            logged = shown[name].get(metric)
            if logged is None or not isclose(logged, value, rel_tol=1e-9, abs_tol=1e-12):
                wrong.append(f"{name} {metric}: the report has {value}, MLflow {logged}")
    return checked, wrong


def main() -> int:
    """Print all differences. Return 1 if there are any."""
    parser = argparse.ArgumentParser(description="Holds what MLflow shows against an evaluation's report.")
    parser.add_argument("report")
    parser.add_argument("url")
    parser.add_argument("experiment")
    options = parser.parse_args()
    with open(options.report) as file:
        report = json.load(file)
    checked, wrong = compare(report, runs(options.url, options.experiment, report["job"]["uid"]))
    print("\n".join(wrong) or f"{checked} numbers in MLflow are the same")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
