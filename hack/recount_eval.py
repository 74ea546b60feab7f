"""Recomputes every number of an evaluation's report, only from its table of tries.

    recount_eval.py results.parquet report.json [--status FILE] [--metrics FILE]

The script is independent of Headway on purpose. It uses the standard library and pyarrow, and none of the
product's own code. It follows docs/evaluation.md: values, intervals, paired differences, p values, the gate,
usage and cost. From the report it takes only the settings, which are not in the table: threshold, k, prices,
baseline, gate.

With more than 13 clusters, a p value comes from random sign flips. The script makes its own draw, and accepts
a difference of up to five standard errors. `--status` takes the job as `kubectl get rlev NAME -o json` prints
it. `--metrics` takes the coordinator's last answer at /metrics. The script prints all differences, and exits
with 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cached_property
from math import fsum, isclose
from typing import Any

from recount_gate import Check, conditions, worst
from recount_measures import Line, apart, tool, values
from recount_prices import Costs
from recount_shown import Part, in_a_line, in_metrics, in_status, models, other_model, read_metrics
from recount_statistics import SCORES, SHARES, Values, difference, estimate, holm

Json = Any
ALL, TOOLS = "all", 32
MEANS = (
    "turns",
    "prompt_tokens",
    "cached_tokens",
    "sampled_tokens",
    "seconds",
    "sandbox_seconds",
    "tool_calls",
)
HEADLINE, LOST_MORE = "external_score", 0.05
COMPARED = (HEADLINE, "success", "reward", "completion")
"""The measures whose differences are reported for each task."""
ROUNDED = 0.5001e-4
"""Largest rounding error of a number in a status, which has four digits after the point."""
TENTHS = 0.0501
"""Largest rounding error of seconds in a status, which have one digit after the point."""
IN_STATUS = (("reward", "reward"), ("externalScore", HEADLINE), ("success", "success"))


# The report.


class Recount:
    """Compares a report with numbers recomputed from the table. `wrong` lists the differences."""

    def __init__(self, lines: Sequence[Line], report: Json) -> None:
        self.lines, self.report = lines, report
        self.wrong: list[str] = []
        self.checked = 0
        self.bill = Costs(lines, report["usage"]["priceBook"]["entries"])
        self.costs = self.bill.by_try
        self.by_name = {
            each["name"]: [line for line in lines if line["candidate"] == each["name"]]
            for each in report["candidates"]
        }

    def of(self, candidate: str, task: str = ALL) -> list[Line]:
        """A candidate's tries on one task or suite. With the task `all`, its tries on all rows outside
        suites."""
        mine = self.by_name[candidate]
        if task == ALL:
            return [line for line in mine if not line["suite"]]
        return [line for line in mine if line["task"] == task]

    def same(self, what: str, reported: Json, counted: Json, error: float = 1e-7) -> None:
        """Compare two values. Record numbers that differ by more than `error`, both relatively and
        absolutely."""
        self.checked += 1
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (reported, counted))
        if not (isclose(reported, counted, rel_tol=error, abs_tol=error) if numbers else reported == counted):
            self.wrong.append(f"{what}: the report has {reported}, the recount {counted}")

    def run(self) -> None:
        """Recompute and compare the whole report."""
        for line in self.lines:
            self.judgments(line)
        for candidate in self.report["candidates"]:
            self.candidate(candidate)
        self.differences(self.report["differences"], ALL)
        suites = {line["task"] for line in self.lines if line["suite"]}
        self.same("suites", sorted(self.report["suites"]), sorted(suites))
        tasks = {line["task"] for line in self.lines} - {"", *suites}
        self.same("tasks", sorted(self.report.get("tasks", {})), sorted(tasks))
        parts = self.report["suites"] | self.report.get("tasks", {})
        for task in parts:
            self.differences(parts[task]["differences"], task)
        self.usage()
        self.headline()
        if self.report["gate"] is not None:
            self.same("gate", self.report["gate"]["verdict"], self.verdict)
            self.gate(self.report["gate"]["checks"])

    def gate(self, reported: Json) -> None:
        """Compare each condition of the gate: its verdict, its numbers, and whether its message has the
        numbers."""
        lost = [each for each in reported if "lost" in each["numbers"]]
        ordered = [each for each in reported if each not in lost]
        ordered += sorted(lost, key=lambda each: [*each["numbers"].values()])
        self.same(
            "gate checks", [each["verdict"] for each in ordered], [each.verdict for each in self.checks]
        )
        for at, (each, counted) in enumerate(zip(ordered, self.checks, strict=False)):
            self.same(f"gate check {at} names", sorted(each["numbers"]), sorted(counted.numbers))
            for name in each["numbers"].keys() & counted.numbers.keys():
                self.same(f"gate check {at} {name}", each["numbers"][name], counted.numbers[name], 1e-6)
            shown = [name for name in each["numbers"] if (name, each["verdict"]) != ("shown", "Refused")]
            told = [each["numbers"][name] for name in shown if each["numbers"][name] is not None]
            words = [f"{abs(number):.4g}" for number in told]
            self.same(f"gate check {at} message", [word for word in words if word in each["message"]], words)

    @cached_property
    def checks(self) -> list[Check]:
        """The recomputed conditions of the gate."""
        gate, rewards = self.report["gate"]["spec"], self.report["job"]["rewardRange"]
        failed = {each["name"] for each in self.report["candidates"] if each["state"] == "Failed"}
        return [*conditions(gate, self.sample, failed, rewards, self.report["suites"].keys())]

    @property
    def verdict(self) -> str | None:
        """The gate's verdict; None if the job has no gate."""
        return None if self.report["gate"] is None else worst(self.checks)

    def judgments(self, line: Line) -> None:
        """Compare a try's success, by score and by reward, and its cost."""
        threshold, name = self.report["job"]["evaluation"].get("successThreshold", 1.0), line["episode_id"]
        for column, by in (("success", "external_score"), ("success_by_reward", "reward")):
            self.same(f"{name} {column}", line[column], line[by] is not None and line[by] >= threshold)
        self.same(f"{name} cost", line["cost"], self.bill.total([line]))

    def candidate(self, reported: Json) -> None:
        """Compare the counts, bill and measures of one candidate."""
        name, mine, own = reported["name"], self.by_name[reported["name"]], self.of(reported["name"])
        outcomes = Counter(line["outcome"] for line in own)
        self.same(f"{name} outcomes", reported["outcomes"], dict(outcomes))
        self.same(f"{name} tries", reported["tries"], len(own))
        self.same(f"{name} scored", reported["scored"], len(own) - outcomes["InfraError"])
        self.same(f"{name} rows", reported["rows"], len({line["row"] for line in own}))
        self.same(
            f"{name} cost",
            None if reported["cost"] is None else float(reported["cost"]),
            self.bill.total(mine),
        )
        self.same(f"{name} unpriced", reported["unpriced"], self.bill.unpriced(mine))
        self.same(f"{name} uncounted", reported["uncounted"], sum(line["uncounted_turns"] for line in mine))
        differing = sum(line["differing_answers"] for line in mine)
        self.same(f"{name} differing answers", reported["differingAnswers"], differing)
        self.amounts(name, reported["usage"], mine)
        tasks = {ALL, *(line["task"] for line in mine)} - {""} if mine else set()
        self.same(f"{name} tasks", sorted(reported["measures"]), sorted(tasks))
        for task in reported["measures"]:
            self.measures(name, task, reported["measures"][task])

    def named(self) -> tuple[str | None, dict[str, Any] | None]:
        """The candidate of the headline (the gate's candidate, or else the best one), and its external
        score."""
        found = {
            name: estimate(HEADLINE, values(self.of(name), HEADLINE, self.costs)) for name in self.by_name
        }
        scores = {name: each for name, each in found.items() if each is not None}
        if self.report["gate"] is not None:
            name = self.report["gate"]["spec"]["candidate"]
            return (name, scores[name]) if name in scores else (None, None)
        if not scores:
            return None, None
        lost = {name: self.lost(name) for name in scores}
        maximum = min(lost.values()) + LOST_MORE + 1e-9
        # Equal means may differ in their last digit, so round them. Of equal candidates, the first one wins.
        best = max(scores, key=lambda name: (lost[name] <= maximum, round(scores[name]["value"], 12)))
        return best, scores[best]

    def lost(self, candidate: str) -> float:
        """The share of a candidate's tries that ended as InfraError, which no mean contains."""
        mine = self.of(candidate)
        return sum(line["outcome"] == "InfraError" for line in mine) / len(mine)

    def headline(self) -> None:
        """Compare the report's headline."""
        reported, (name, score) = self.report["headline"], self.named()
        self.same("headline candidate", reported and reported["candidate"], name)
        if reported is not None and score is not None:
            self.same("headline measure", reported["measure"], HEADLINE)
            for key, number in score.items():
                self.same(f"headline {key}", reported.get(key), number)

    def amounts(self, what: str, reported: Json, lines: Iterable[Line]) -> None:
        """Compare the usage by class."""
        found: dict[str, list[float]] = {}
        for each in (each for line in lines for each in line["usage"]):
            found.setdefault(each["class"], []).append(each["quantity"])
        self.same(f"{what} classes", sorted(reported), sorted(found))
        for name in reported.keys() & found.keys():
            self.same(f"{what} {name}", reported[name], fsum(found[name]))

    def measures(self, candidate: str, task: str, reported: Json) -> None:
        """Compare every measure of a candidate on a task, and check that no measure is missing."""
        lines = self.of(candidate, task)
        total = reported.get("cost_total", {}).get("value")
        self.same(f"{candidate} {task} cost", total, self.bill.total(lines))
        counted = {name: estimate(name, values(lines, name, self.costs)) for name in self.names()}
        known = {name for name, each in counted.items() if each is not None}
        whole = set() if total is None else {"cost_total"}
        self.same(f"{candidate} {task} measures", sorted(reported), sorted(known | whole))
        for name in known & reported.keys():
            for key, number in (counted[name] or {}).items():
                self.same(f"{candidate} {task} {name} {key}", reported[name].get(key), number)

    def names(self) -> list[str]:
        """Every measure that the tries of all candidates may have."""
        found = [*SHARES, *SCORES, *MEANS, "cost", "cost_per_success"]
        for k in self.report["job"]["evaluation"].get("passK", [1]):
            found += [f"pass_{kind}_{k}{by}" for kind in ("at", "power") for by in ("", "_by_reward")]
        metrics = {apart(name) for line in self.lines for name, _ in line["metrics"]}
        calls = Counter[str]()
        for line in self.lines:
            for called, count in line["tool_calls_by_tool"]:
                calls[tool(called)] += count
        found += [f"metric_{name}" for name in metrics - {"completion", "format"}]
        kept = sorted(calls, key=lambda name: (-calls[name], name))[:TOOLS]
        found += [f"tool_calls_{name}" for name in kept]
        return found + [name for name in self.asked_tools if name not in found]

    @cached_property
    def asked_tools(self) -> list[str]:
        """Measures of tools that the gate names and the report has. The tools may not have been called at
        all."""
        if self.report["gate"] is None:
            return []
        gate = self.report["gate"]["spec"]
        asked = [gate.get("metric", HEADLINE), *(bound["metric"] for bound in gate.get("noWorse", []))]
        reported = {
            name for each in self.report["candidates"] for of in each["measures"].values() for name in of
        }
        return [name for name in dict.fromkeys(asked) if name.startswith("tool_calls_") and name in reported]

    def differences(self, wanted: Json, task: str) -> None:
        """Compare every paired difference from the baseline, in one task or suite, or over all rows outside
        suites.
        """
        where = "" if task == ALL else f" of {task}"
        self.compared(wanted, task, where)
        for name, reported in wanted.items():
            base = values(self.of(self.report["baseline"], task), name, self.costs)
            for candidate, each in reported.items():
                found = difference(name, values(self.of(candidate, task), name, self.costs), base)
                self.difference(f"{candidate} against the baseline, {name}{where}", each, found or {})
            ps = {candidate: each["p"] for candidate, each in reported.items() if each["p"] is not None}
            for candidate, p in holm(ps).items():
                self.same(f"{candidate} {name}{where} p after Holm", reported[candidate]["p_holm"], p)

    def compared(self, wanted: Json, task: str, where: str) -> None:
        """Check that no difference is missing.

        For each measure, every candidate that has common tries with the baseline must have a difference.
        """
        baseline, tries = self.report["baseline"], {name: self.of(name, task) for name in self.by_name}
        names = self.names() if task == ALL or task in self.report["suites"] else COMPARED
        base = {name: values(tries[baseline], name, self.costs) for name in names}
        expected = {
            f"{name} of {candidate}"
            for candidate, lines in tries.items()
            for name in names
            if candidate != baseline and difference(name, values(lines, name, self.costs), base[name])
        }
        reported = {f"{name} of {candidate}" for name, of in wanted.items() for candidate in of}
        self.same(f"differences{where}", sorted(reported), sorted(expected))

    def difference(self, what: str, reported: Json, found: Mapping[str, Any]) -> None:
        """Compare one paired difference."""
        for key, number in found.items():
            if key == "p" and number is not None:
                self.same(f"{what} p", reported["p"], number[0], max(1e-7, 5 * number[1]))
            else:
                self.same(f"{what} {key}", reported.get(key), number)

    @cached_property
    def billed(self) -> list[Line]:
        """The tries, and one more line for the usage that belongs to no try."""
        others = self.report["usage"]["ofNoTryByDay"]
        return [
            *self.lines,
            {"usage": [each | {"day": date.fromisoformat(each["day"])} for each in others]},
        ]

    def usage(self) -> None:
        """Compare the bill of the job: the usage of its tries, and the usage that belongs to no try."""
        usage = self.report["usage"]
        tried = {
            name: fsum(c["usage"].get(name, 0) for c in self.report["candidates"]) for name in usage["total"]
        }
        for name, amount in usage["total"].items():
            self.same(f"usage {name}", amount, tried[name] + usage["ofNoTry"].get(name, 0))
        billed = self.billed
        self.amounts("usage of no try", usage["ofNoTry"], billed[len(self.lines) :])
        self.same("cost", float(usage["cost"]), self.bill.bill(billed))
        self.same("unpriced", usage["unpriced"], self.bill.unpriced(billed))
        self.same("models", sorted(usage["byModel"]), sorted(models(billed)))
        for model in usage["byModel"]:
            mine = [
                {"usage": [each for each in line["usage"] if other_model(each) == model]} for line in billed
            ]
            self.amounts(f"usage of {model}", usage["byModel"][model], mine)

    def sample(self, candidate: str, name: str, task: str) -> Values | None:
        """A candidate's values of a metric, for the gate; None if there are none."""
        if name not in self.names():
            return None
        known = values(self.of(candidate, task), name, self.costs)
        return known if fsum(value.bottom for value in known.values()) > 0 else None

    def rounded(self, what: str, reported: str | None, counted: float | None) -> None:
        """Compare a number of a status with the counted number, at the precision of a status."""
        near = reported is not None and counted is not None and abs(float(reported) - counted) <= ROUNDED
        self.same(what, reported, reported if near else counted)

    def status(self, job: Json) -> None:
        """Compare the job's status, at its precision."""
        status, (name, score) = job["status"], self.named()
        results = status.get("results", [])
        self.same("status candidates", [each["name"] for each in results], [*self.by_name])
        for result in results:
            if result["name"] in self.by_name:
                self.result(result)
        headline = status.get("headline") or {}
        self.same("status headline candidate", headline.get("candidate"), name)
        self.same("status headline score", headline.get("score"), in_a_line(score))
        total = self.report["usage"]["total"]
        for field, amount in in_status(total).items():
            number = float(status.get("usage", {}).get(field, 0))
            near = abs(number - amount) <= (TENTHS if field == "sandboxSeconds" else 0)
            self.same(f"status usage {field}", number, number if near else amount)
        done = {(line["candidate"], line["row"]) for line in self.lines}
        if "progress" in status:
            self.same("status progress", status["progress"].get("groups", 0), len(done))
        self.rounded("status cost", status.get("usage", {}).get("cost"), float(self.report["usage"]["cost"]))
        gate = status.get("gate") or {}
        self.same("status gate result", gate.get("result"), self.verdict)
        if self.report["gate"] is not None:
            passed = [each for each in status.get("conditions", []) if each["type"] == "GatePassed"]
            for each in [gate, *passed]:
                text = each.get("message", "")
                said = bool(text) and self.report["gate"]["message"].startswith(text)
                self.same("status gate message", text, text if said else self.report["gate"]["message"])

    def result(self, reported: Json) -> None:
        """Compare the result of one candidate in the status."""
        name, what = reported["name"], f"status {reported['name']}"
        mine, own = self.by_name[name], self.of(name)
        scored = sum(line["outcome"] != "InfraError" for line in own)
        self.same(f"{what} rows", reported.get("rows", 0), len({line["row"] for line in own}))
        self.same(f"{what} tries", reported.get("tries", 0), scored)
        self.same(f"{what} infraErrors", reported.get("infraErrors", 0), len(own) - scored)
        self.rounded(f"{what} cost", reported.get("cost"), self.bill.total(mine) if mine else None)
        measures = next(each["measures"] for each in self.report["candidates"] if each["name"] == name)
        overall = measures.get(ALL, {})
        self.same(f"{what} score", reported.get("score"), in_a_line(overall.get(HEADLINE)))
        for key, measure in IN_STATUS:
            for end in ("value", "low", "high"):
                number = overall.get(measure, {}).get(end)
                self.rounded(f"{what} {measure} {end}", reported.get(key, {}).get(end), number)
        shown = {each["name"]: each["score"] for each in reported.get("suites", [])}
        suites = {suite: in_a_line(measures.get(suite, {}).get(HEADLINE)) for suite in self.report["suites"]}
        self.same(f"{what} suites", sorted(shown), sorted(suite for suite in suites if suites[suite]))
        for suite in shown.keys() & suites.keys():
            self.same(f"{what} {suite}", shown[suite], suites[suite])
        self.beside(what, reported.get("difference"), self.report["differences"].get(HEADLINE, {}).get(name))

    def beside(self, what: str, reported: Json, counted: Json) -> None:
        """Compare a candidate's difference from the baseline in the status. Its p value is Holm-corrected."""
        baseline = None if counted is None else self.report["baseline"]
        self.same(f"{what} difference baseline", reported and reported["baseline"], baseline)
        for end, key in (("value", "value"), ("low", "low"), ("high", "high"), ("p", "p_holm")):
            self.rounded(f"{what} difference {end}", (reported or {}).get(end), (counted or {}).get(key))

    def metrics(self, text: str) -> None:
        """Compare the rows of each candidate, and every measure with its interval, in the text of
        /metrics."""
        rows = dict(re.findall(r'^\w*eval_rows\{.*candidate="([^"]*)".*\} (\S+)$', text, re.MULTILINE))
        self.same("candidates in /metrics", sorted(rows), sorted(self.by_name))
        for name in rows.keys() & self.by_name.keys():
            counted = len({line["row"] for line in self.of(name)})
            self.same(f"/metrics {name} rows", float(rows[name]), float(counted))
        shown = {}
        gauge = re.compile(r"^\w*eval_(measure|difference)(_low|_high|)\{(.*)\} (\S+)$", re.MULTILINE)
        for kind, end, labels, number in gauge.findall(text):
            label = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
            shown[kind, label["candidate"], label["task"], label["measure"], end] = float(number)
        reported = {
            (*key, end): found[field]
            for key, found in self.estimates()
            for end, field in (("", "value"), ("_low", "low"), ("_high", "high"))
            if found[field] is not None
        }
        self.same("samples in /metrics", sorted(shown), sorted(reported))
        for key in shown.keys() & reported.keys():
            self.same(f"/metrics {' '.join(key)}", shown[key], reported[key])
        self.bill_in_metrics(read_metrics(text))

    def bill_in_metrics(self, shown: Mapping[Part, float]) -> None:
        """Compare tokens, seconds and cost in /metrics. The cost has four digits after the point there."""
        usage = self.report["usage"]
        counted = in_metrics(usage["total"], float(usage["cost"]), self.billed, self.bill)
        self.same("bill in /metrics", sorted(shown), sorted(counted))
        for part in shown.keys() & counted.keys():
            error = ROUNDED if part == ("usage_cost_usd",) else 1e-7
            self.same(f"/metrics {' '.join(part)}", shown[part], counted[part], error)

    def estimates(self) -> Iterator[tuple[tuple[str, str, str, str], Json]]:
        """Every measure and difference of the report, as pairs of (kind, candidate, task, measure) and
        estimate."""
        for each in self.report["candidates"]:
            for task, of in each["measures"].items():
                yield from ((("measure", each["name"], task, name), found) for name, found in of.items())
        parts = {ALL: self.report, **self.report["suites"], **self.report.get("tasks", {})}
        for task, of in parts.items():
            for name, by_candidate in of["differences"].items():
                for candidate, found in by_candidate.items():
                    yield ("difference", candidate, task, name), found


def main() -> int:
    """Print all differences. Return 1 if there are any."""
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(description="Counts every number of an evaluation's report again.")
    parser.add_argument("results")
    parser.add_argument("report")
    parser.add_argument("--status")
    parser.add_argument("--metrics")
    options = parser.parse_args()
    with open(options.report) as file:
        recount = Recount(pq.read_table(options.results).to_pylist(), json.load(file))
    recount.run()
    for path, check in (
        (options.status, lambda text: recount.status(json.loads(text))),
        (options.metrics, recount.metrics),
    ):
        if path:
            with open(path) as file:
                check(file.read())
    print("\n".join(recount.wrong) or f"{recount.checked} numbers are the same")
    return 1 if recount.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
