"""Counts every number of an evaluation's report again, from its table of tries alone.

    recount_eval.py results.parquet report.json [--status FILE] [--metrics FILE]

Independent of Headway on purpose: the standard library and pyarrow, none of the product's own code. It follows
docs/evaluation.md: values, intervals, paired differences, p values, the gate, usage and cost. Of the report it
takes the settings (threshold, k, prices, baseline, gate), which the table does not hold.

A p value of more than 13 clusters is drawn at random, so it is held against another draw within five standard
errors. `--status` takes the job as `kubectl get rlev NAME -o json` prints it, `--metrics` what the
coordinator's /metrics answers at the end. Anything that differs is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal, localcontext
from math import comb, exp, fsum, isclose, lgamma, log, log1p, sqrt
from typing import Any, NamedTuple

Json = Any
Line = Mapping[str, Any]
ALL, ENOUGH, TOOLS, EXACT, DRAWS, FLIPS, PRIOR = "all", 6, 32, 13, 2000, 9999, 2.0
NORMAL = 1.959963984540054
SHARES = {"success", "success_by_reward", "failed_tool_calls", "malformed_tool_calls", "turn_limit"}
SHARES |= {"token_limit", "agent_error", "infra_error"}
SCORES = {"reward", "external_score", "completion", "format"}
MEANS = ("turns", "prompt_tokens", "cached_tokens", "sampled_tokens", "seconds", "sandbox_seconds", "tool_calls")
BEST_HIGH = SCORES | {"success", "success_by_reward"}


class Value(NamedTuple):
    """What a try, or a row, adds to a measure."""

    cluster: str
    top: float
    bottom: float


Values = dict[tuple[int, int], Value]


def word(name: str) -> str:
    """A name as it stands in a measure's name."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


# What a measure is made of.


def part(line: Line, name: str, cost: float) -> tuple[float, float] | None:
    """What one try adds above and below the line."""
    scored, calls = line["outcome"] != "InfraError", dict(line["tool_calls_by_tool"])
    if name == "infra_error":
        return float(not scored), 1.0
    if name in ("cost", "cost_per_success"):
        return cost, float(scored if name == "cost" else line["success"])
    if not scored:
        return None
    if name == "agent_error":
        return float(line["outcome"] == "AgentError"), 1.0
    if name in ("failed_tool_calls", "malformed_tool_calls"):
        below = sum(calls.values()) + (line[name] if name.startswith("malformed") else 0)
        return (line[name], below) if below else None
    if name.startswith("tool_calls_"):
        return sum(n for tool, n in calls.items() if word(tool) == name[len("tool_calls_") :]), 1.0
    if name.startswith("metric_"):
        found = [v for key, v in sorted(line["metrics"]) if word(key) == name[len("metric_") :]]
        return (found[-1], 1.0) if found else None
    return None if line[name] is None else (float(line[name]), 1.0)


def passed(lines: Sequence[Line], name: str) -> float | None:
    """pass@k or pass^k of one row."""
    kind, k_text, by_reward = re.fullmatch(r"pass_(at|power)_(\d+)(_by_reward)?", name).groups()  # type: ignore[union-attr]
    scored = [line for line in lines if line["outcome"] != "InfraError"]
    good = sum(line["success_by_reward" if by_reward else "success"] for line in scored)
    n, k = len(scored), int(k_text)
    if n < k:
        return None
    return comb(good, k) / comb(n, k) if kind == "power" else 1 - comb(n - good, k) / comb(n, k)


def values(lines: Iterable[Line], name: str, costs: Mapping[str, Decimal]) -> Values:
    """A measure's values among some tries."""
    found: Values = {}
    if name.startswith("pass_"):
        rows: dict[int, list[Line]] = {}
        for line in lines:
            rows.setdefault(line["row"], []).append(line)
        for row, members in rows.items():
            if (value := passed(members, name)) is not None:
                found[row, -1] = Value(members[0]["cluster"], value, 1.0)
        return found
    for line in lines:
        if (pair := part(line, name, float(costs[line["episode_id"]]))) is not None:
            found[line["row"], line["try"]] = Value(line["cluster"], *pair)
    return found


def is_share(name: str, found: Iterable[Value]) -> bool:
    """Whether all values lie in 0..1, by definition or as they are."""
    if name in SHARES or name.startswith("pass_"):
        return True
    bounded = all(0 <= value.top <= value.bottom for value in found)
    return bounded and (name in SCORES or name.startswith("metric_"))


# Distributions, by the incomplete beta function's continued fraction (Lentz) and bisection.


def beta_cdf(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, 10_000):
        before = found
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + step * d), 1 + step / c
            found *= c * d
        if isclose(found, before, rel_tol=1e-15):
            break
    return front * found


def bisected(function: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a growing function has a value."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return (low + high) / 2


def student(df: float, p: float) -> float:
    """Quantile p > 0.5 of Student's distribution."""
    x = bisected(lambda x: -beta_cdf(df / 2, 0.5, x), -2 * (1 - p), 1.0, 0.0)
    return sqrt(df * (1 - x) / x)


# Intervals.


class Spread(NamedTuple):
    """Variance of a mean, and its degrees of freedom."""

    variance: float
    df: float


def by_cluster(names: Sequence[str], numbers: Sequence[float]) -> list[float]:
    """Sums, in the order in which the clusters first come."""
    sums: dict[str, list[float]] = {}
    for name, number in zip(names, numbers, strict=True):
        sums.setdefault(name, []).append(number)
    return [fsum(each) for each in sums.values()]


def settled(numbers: Sequence[float], scale: float) -> list[float]:
    """Numbers, with 0 for what is rounding."""
    return [0.0 if abs(number) < 1e-12 * scale else number for number in numbers]


def correlation(names: Sequence[str], numbers: Sequence[float]) -> float:
    """Of values in a cluster, by the analysis of variance."""
    groups: dict[str, list[float]] = {}
    for name, number in zip(names, numbers, strict=True):
        groups.setdefault(name, []).append(number)
    n, k = len(numbers), len(groups)
    if n == k or k < 2:
        return 0.0
    means, middle = {name: fsum(g) / len(g) for name, g in groups.items()}, fsum(numbers) / n
    inside = fsum((x - means[name]) ** 2 for name, g in groups.items() for x in g) / (n - k)
    between = fsum(len(g) * (means[name] - middle) ** 2 for name, g in groups.items()) / (k - 1)
    size = (n - sum(len(g) ** 2 for g in groups.values()) / n) / (k - 1)
    whole = between + (size - 1) * inside
    return min(1.0, max(0.0, (between - inside) / whole)) if whole > 0 else 0.0


def clustered(residuals: Sequence[float], weights: Sequence[float], rho: float) -> Spread:
    """CR2 for a weighted mean, with Satterthwaite's degrees of freedom under equal correlation."""
    total = fsum(weights)
    h = [min(w / total, 1 - 1e-9) for w in weights]
    scale = [1 / (sqrt(1 - leverage) * total) for leverage in h]
    variance = fsum((r * s) ** 2 for r, s in zip(residuals, scale, strict=True))
    v = [w * (1 - rho) + rho * w * w for w in weights]
    a = [s * each for s, each in zip(scale, v, strict=True)]
    b = [s * each for s, each in zip(scale, h, strict=True)]
    d, whole = [s * s * each for s, each in zip(scale, v, strict=True)], fsum(v)
    # The matrix is diag(d) - ab' - ba' + whole * bb': its trace, and the trace of its square.
    trace = fsum(d) - 2 * dot(a, b) + whole * dot(b, b)
    aa, ab, bb = dot(a, a), dot(a, b), dot(b, b)
    low_rank = 2 * (aa * bb + ab**2) - 4 * whole * ab * bb + (whole * bb) ** 2
    mixed = fsum(x * (whole * q * q - 2 * p * q) for x, p, q in zip(d, a, b, strict=True))
    return Spread(variance, max(1.0, trace**2 / (dot(d, d) + 2 * mixed + low_rank)))


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return fsum(x * y for x, y in zip(a, b, strict=True))


def wilson(share: float, n: float, z: float) -> tuple[float, float, float]:
    """Wilson's ends, and Clopper and Pearson's lower one."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    fewer = n * (NORMAL / z) ** 2
    hits = share * fewer
    floor = bisected(lambda x: beta_cdf(hits, fewer - hits + 1, x), 0.025, 0.0, 1.0) if hits > 0 else 0.0
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if share <= 0 else low), (1.0 if share >= 1 else high), floor


def estimate(name: str, found: Values) -> dict[str, Any] | None:
    """A measure of one candidate, as the report has it."""
    units = sorted(found)
    each = [found[unit] for unit in units]
    below = fsum(value.bottom for value in each)
    if below <= 0:
        return None
    names = [value.cluster for value in each]
    tops, bottoms = [value.top for value in each], [value.bottom for value in each]
    mean = fsum(tops) / below
    weights = by_cluster(names, bottoms)
    told = {
        "value": mean,
        "rows": len({row for row, _ in units}),
        "clusters": sum(w > 0 for w in weights),
        "tries": len(units),
    }
    ends = interval(name, each, names, tops, bottoms, mean, weights)
    if isinstance(ends, str):
        return told | {"low": None, "high": None, "floor": None, "method": "none", "why": ends}
    method, low, high, floor = ends
    return told | {"low": low, "high": high, "floor": floor, "method": method, "why": None}


def interval(
    name: str,
    each: Sequence[Value],
    names: Sequence[str],
    tops: Sequence[float],
    bottoms: Sequence[float],
    mean: float,
    weights: Sequence[float],
) -> str | tuple[str, float, float, float]:
    """Method and ends, or why there are none."""
    if sum(w > 0 for w in weights) < 2:
        return "TooFewClusters"
    scale = max(map(abs, tops)) + abs(mean) * max(bottoms)
    residuals = settled(by_cluster(names, [t - mean * b for t, b in zip(tops, bottoms, strict=True)]), scale)
    some = [(c, t / b) for c, t, b in zip(names, tops, bottoms, strict=True) if b > 0]
    spread = clustered(residuals, weights, correlation([c for c, _ in some], [x for _, x in some]))
    if not is_share(name, each):
        half = student(spread.df, 0.975) * sqrt(spread.variance)
        return ("t-clustered", mean - half, mean + half, mean - half) if any(residuals) else "NoSpread"
    binary = all(t in (0, 1) for t in tops) and all(b == 1 for b in bottoms)
    if binary and len(weights) == len(each):
        return "wilson", *wilson(mean, len(weights), NORMAL)
    if mean in (0.0, 1.0):
        return "wilson-clustered", *wilson(mean, fsum(weights) ** 2 / dot(weights, weights), NORMAL)
    if not any(residuals) and not binary:
        return "NoSpread"
    count, sums = fsum(weights), by_cluster(names, tops)
    telling = min(sum(t > 0 for t in sums), sum(t < w for t, w in zip(sums, weights, strict=True)))
    effect = max(spread.variance * count / (mean * (1 - mean)), float(binary))
    worst = dot(weights, weights) / count
    n = count * (telling**2 + PRIOR) / (telling**2 * effect + PRIOR * worst)
    return "wilson-clustered", *wilson(mean, n, student(spread.df, 0.975))


# Paired differences.


def difference(name: str, ours: Values, theirs: Values) -> dict[str, Any] | None:
    """Candidate minus baseline over the units that both have; `p` is a pair: value and standard error."""
    units = sorted(ours.keys() & theirs.keys())
    a, b = fsum(ours[u].bottom for u in units), fsum(theirs[u].bottom for u in units)
    if not units or min(a, b) <= 0:
        return None
    x, y = fsum(ours[u].top for u in units), fsum(theirs[u].top for u in units)
    names = [ours[u].cluster for u in units]
    pooled, scale = (x + y) / (a + b), max(abs(ours[u].top) for u in units) / a
    scale += max(abs(theirs[u].top) for u in units) / b
    each = [_less(ours[u], pooled) / a - _less(theirs[u], pooled) / b for u in units]
    own = [_less(ours[u], x / a) / a - _less(theirs[u], y / b) / b for u in units]
    weights = by_cluster(names, [(ours[u].bottom / a + theirs[u].bottom / b) / 2 for u in units])
    shares, residuals = settled(by_cluster(names, each), scale), settled(by_cluster(names, own), scale)
    plain = all(v[u].bottom == 1 for v in (ours, theirs) for u in units)
    share = is_share(name, ours.values()) and is_share(name, theirs.values())
    told = {"value": x / a - y / b, "candidate": x / a, "baseline": y / b, "tries": len(units)}
    told |= {"rows": len({row for row, _ in units}), "clusters": len(weights)}
    centre, spread = widened(told["value"], shares, residuals, weights, correlation(names, each), plain, share)
    if spread is None or len(weights) < ENOUGH:
        return told | {"low": None, "high": None, "p": None, "smallest": None, "finding": "TooFewRows"}
    t, error = student(spread.df, 0.975), sqrt(spread.variance)
    low, high = centre - t * error, centre + t * error
    if share:
        low, high = max(-1.0, low), min(1.0, high)
    finding = "Higher" if low > 0 else "Lower" if high < 0 else "NotShown"
    smallest = (t + student(spread.df, 0.8)) * error
    return told | {"low": low, "high": high, "p": flips(shares), "smallest": smallest, "finding": finding}


def _less(value: Value, mean: float) -> float:
    return value.top - mean * value.bottom


def widened(
    centre: float,
    shares: Sequence[float],
    residuals: Sequence[float],
    weights: Sequence[float],
    rho: float,
    plain: bool,
    share: bool,
) -> tuple[float, Spread | None]:
    """The interval's centre and spread, with two made-up clusters where clusters differ alike."""
    k, share = len(weights), share and plain
    if k < 2 or not (any(residuals) or share):
        return centre, None
    alike = commonest([s / w for s, w in zip(shares, weights, strict=True)]) if plain else 0.0
    if alike == 0:
        return centre, clustered(residuals, weights, rho)
    typical = fsum(weights) / k
    differ, prior = [s / typical for s in shares if s], alike if share else 0.0
    size = sqrt((dot(differ, differ) + prior) / (len(differ) + prior))
    more = [*weights, alike * typical, alike * typical]
    moved = centre * fsum(weights) / fsum(more)
    own = [r + (centre - moved) * w for r, w in zip(residuals, weights, strict=True)]
    made_up = [sqrt(alike) * typical * (end - moved) for end in (size, -size)]
    return moved, clustered([*own, *made_up], more, rho)


def commonest(means: Sequence[float]) -> float:
    """Share of clusters that have the commonest difference, besides one."""
    largest = max(map(abs, means)) or 1.0
    most = Counter(round(mean / largest, 9) for mean in means).most_common(1)[0][1]
    return (most - 1) / (len(means) - 1)


def flips(shares: Sequence[float]) -> tuple[float, float]:
    """Two-sided p value by sign flips, and its standard error beside the report's own draw: 0 if exact."""
    differ = [share for share in shares if share]
    if len(differ) < 2:
        return 1.0, 0.0
    least = abs(fsum(differ)) - 1e-9 * fsum(map(abs, differ))
    if len(differ) <= EXACT:
        sums = [0.0]
        for share in differ:
            sums = [each + sign * share for each in sums for sign in (1, -1)]
        return sum(abs(each) >= least for each in sums) / len(sums), 0.0
    rng, reached = random.Random(15), 0
    for _ in range(DRAWS):
        signs = rng.getrandbits(len(differ))
        reached += abs(sum(s if signs >> at & 1 else -s for at, s in enumerate(differ))) >= least
    p = (reached + 1) / (DRAWS + 1)
    return p, sqrt(max(p * (1 - p), 1 / DRAWS) * (1 / DRAWS + 1 / FLIPS))


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Holm's corrected p values."""
    found, least = {}, 0.0
    for rank, name in enumerate(sorted(ps, key=lambda name: ps[name])):
        least = found[name] = max(least, min(1.0, (len(ps) - rank) * ps[name]))
    return found


# The gate.


def verdict(gate: Json, samples: Callable[[str, str], Values | None]) -> str:
    """Passed, TooFewRows, Refused or Error."""
    rank = ["Passed", "TooFewRows", "Refused", "Error"]
    return max(conditions(gate, samples), key=rank.index, default="Error")


def conditions(gate: Json, samples: Callable[[str, str], Values | None]) -> Iterator[str]:
    """The verdict of each condition."""
    metric = gate.get("metric", "external_score")
    if gate.get("minimum") is not None:
        yield minimum(gate, metric, samples(gate["candidate"], metric))
    if gate.get("mustBeat") is None:
        return
    wanted = [(metric, float(gate.get("margin", 0)))]
    wanted += [(each["metric"], -float(each.get("margin", 0))) for each in gate.get("noWorse", [])]
    for name, least in wanted:
        ours, theirs = samples(gate["candidate"], name), samples(gate["mustBeat"], name)
        yield "Error" if ours is None or theirs is None else beats(name, ours, theirs, least)


def minimum(gate: Json, name: str, found: Values | None) -> str:
    """Whether the metric reaches the minimum."""
    known = estimate(name, found) if found is not None and better_high(name) else None
    least = float(gate["minimum"])
    if known is None:
        return "Error"
    if known["value"] < least:
        return "Refused"
    if gate.get("minimumOf") == "Value":
        return "Passed"
    floor = known["floor"]
    return "Passed" if floor is not None and known["clusters"] >= ENOUGH and floor >= least else "TooFewRows"


def beats(name: str, ours: Values, theirs: Values, least: float) -> str:
    """Whether the difference, in the better direction, is shown to be above `least`."""
    found = difference(name, ours, theirs)
    if found is None or found["low"] is None:
        return "TooFewRows"
    low, value = (found["low"], found["value"]) if better_high(name) else (-found["high"], -found["value"])
    return "Passed" if low > least else "Refused" if value <= least else "TooFewRows"


def better_high(name: str) -> bool:
    """Whether more of a measure is better."""
    return name in BEST_HIGH or name.startswith(("pass_", "metric_"))


# The report.


class Recount:
    """The table, held against a report. `wrong` has what differs."""

    def __init__(self, lines: Sequence[Line], report: Json) -> None:
        self.lines, self.report = lines, report
        self.wrong: list[str] = []
        self.checked = 0
        self.prices = [
            (date.fromisoformat(entry["since"]), entry["prices"])
            for entry in report["usage"]["priceBook"]["entries"]
        ]
        self.costs = {line["episode_id"]: self.bill(line["usage"]) for line in lines}
        self.by_name = {each["name"]: self.of(each["name"]) for each in report["candidates"]}

    def of(self, candidate: str, task: str = ALL) -> list[Line]:
        """A candidate's tries, of one task or of all."""
        mine = (line for line in self.lines if line["candidate"] == candidate)
        return [line for line in mine if task in (ALL, line["task"])]

    def bill(self, usage: Iterable[Line]) -> Decimal:
        """US dollars, at the prices of the day."""
        with localcontext() as context:
            context.prec = 60
            return sum((self.price(each) * Decimal(repr(each["quantity"])) for each in usage), Decimal(0))

    def price(self, used: Line) -> Decimal:
        """Of one token or second of a class, on its day."""
        begun = [prices for since, prices in self.prices if since <= used["day"]] or [self.prices[0][1]]
        price = Decimal(begun[-1].get(used["class"], "0"))
        return price if used["class"].endswith("Seconds") else price / 1_000_000

    def same(self, what: str, told: Json, counted: Json, error: float = 1e-7) -> None:
        """Note a number that differs by more than `error`, beside its size or at all."""
        self.checked += 1
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (told, counted))
        if not (isclose(told, counted, rel_tol=error, abs_tol=error) if numbers else told == counted):
            self.wrong.append(f"{what}: the report has {told}, the recount {counted}")

    def run(self) -> None:
        """Count everything."""
        for line in self.lines:
            self.judgments(line)
        for candidate in self.report["candidates"]:
            self.candidate(candidate)
        self.differences()
        self.usage()
        if self.report["gate"] is not None:
            gate = self.report["gate"]["spec"]
            self.same("gate", self.report["gate"]["verdict"], verdict(gate, self.sample(gate)))

    def judgments(self, line: Line) -> None:
        """Success, by score and by reward, and the try's cost."""
        threshold, name = self.report["job"]["evaluation"].get("successThreshold", 1.0), line["episode_id"]
        for column, by in (("success", "external_score"), ("success_by_reward", "reward")):
            self.same(f"{name} {column}", line[column], line[by] is not None and line[by] >= threshold)
        self.same(f"{name} cost", line["cost"], float(self.costs[name]))

    def candidate(self, told: Json) -> None:
        """Counts, bill and measures of one candidate."""
        name, mine = told["name"], self.by_name[told["name"]]
        outcomes = Counter(line["outcome"] for line in mine)
        self.same(f"{name} outcomes", told["outcomes"], dict(outcomes))
        self.same(f"{name} tries", told["tries"], len(mine))
        self.same(f"{name} scored", told["scored"], len(mine) - outcomes["InfraError"])
        self.same(f"{name} rows", told["rows"], len({line["row"] for line in mine}))
        self.same(f"{name} cost", float(told["cost"]), float(sum(self.costs[x["episode_id"]] for x in mine)))
        self.amounts(name, told["usage"], mine)
        tasks = {ALL, *(line["task"] for line in mine)} - {""} if mine else set()
        self.same(f"{name} tasks", sorted(told["measures"]), sorted(tasks))
        for task in told["measures"]:
            self.measures(name, task, told["measures"][task])

    def amounts(self, what: str, told: Json, lines: Iterable[Line]) -> None:
        """Usage by class."""
        found: dict[str, list[float]] = {}
        for each in (each for line in lines for each in line["usage"]):
            found.setdefault(each["class"], []).append(each["quantity"])
        self.same(f"{what} classes", sorted(told), sorted(found))
        for name in told.keys() & found.keys():
            self.same(f"{what} {name}", told[name], fsum(found[name]))

    def measures(self, candidate: str, task: str, told: Json) -> None:
        """Every measure of a candidate's task, and that none is missing."""
        lines = self.of(candidate, task)
        total = told.get("cost_total", {}).get("value")
        self.same(f"{candidate} {task} cost", total, float(sum(self.costs[x["episode_id"]] for x in lines)))
        counted = {name: estimate(name, values(lines, name, self.costs)) for name in self.names()}
        known = {name for name, each in counted.items() if each is not None}
        self.same(f"{candidate} {task} measures", sorted(told), sorted(known | {"cost_total"}))
        for name in known & told.keys():
            for key, number in (counted[name] or {}).items():
                self.same(f"{candidate} {task} {name} {key}", told[name].get(key), number)

    def names(self) -> list[str]:
        """Every measure that the tries of all candidates may have."""
        found = [*SHARES, *SCORES, *MEANS, "cost", "cost_per_success"]
        for k in self.report["job"]["evaluation"].get("passK", [1]):
            found += [f"pass_{kind}_{k}{by}" for kind in ("at", "power") for by in ("", "_by_reward")]
        metrics = {word(name) for line in self.lines for name, _ in line["metrics"]}
        calls = Counter[str]()
        for line in self.lines:
            for tool, count in line["tool_calls_by_tool"]:
                calls[word(tool)] += count
        found += [f"metric_{name}" for name in metrics - {"completion", "format"}]
        return found + [f"tool_calls_{tool}" for tool, _ in calls.most_common(TOOLS)]

    def differences(self) -> None:
        """Every paired difference from the baseline, over all tasks."""
        for name, told in self.report["differences"].items():
            base = values(self.by_name[self.report["baseline"]], name, self.costs)
            for candidate, each in told.items():
                found = difference(name, values(self.by_name[candidate], name, self.costs), base)
                self.difference(f"{candidate} against the baseline, {name}", each, found or {})
            ps = {candidate: each["p"] for candidate, each in told.items() if each["p"] is not None}
            for candidate, p in holm(ps).items():
                self.same(f"{candidate} {name} p after Holm", told[candidate]["p_holm"], p)

    def difference(self, what: str, told: Json, found: Mapping[str, Any]) -> None:
        """One of them."""
        for key, number in found.items():
            if key == "p" and number is not None:
                self.same(f"{what} p", told["p"], number[0], max(1e-7, 5 * number[1]))
            else:
                self.same(f"{what} {key}", told.get(key), number)

    def usage(self) -> None:
        """The bill of the job: that of its tries, and what belongs to none."""
        usage = self.report["usage"]
        tried = {name: fsum(c["usage"].get(name, 0) for c in self.report["candidates"]) for name in usage["total"]}
        for name, amount in usage["total"].items():
            self.same(f"usage {name}", amount, tried[name] + usage["ofNoTry"].get(name, 0))
        if not usage["ofNoTry"]:
            self.same("cost", float(usage["cost"]), float(sum(self.costs.values())))

    def sample(self, gate: Json) -> Callable[[str, str], Values | None]:
        """The gate's values of a candidate and metric; None where there are none."""

        def found(candidate: str, name: str) -> Values | None:
            if name not in self.names():
                return None
            known = values(self.of(candidate, gate.get("task", ALL)), name, self.costs)
            return known if fsum(value.bottom for value in known.values()) > 0 else None

        return found

    def status(self, job: Json) -> None:
        """What `kubectl get` shows of each candidate, at the digits that it shows."""
        told = {each["name"]: each["measures"].get(ALL, {}) for each in self.report["candidates"]}
        for result in job["status"]["results"]:
            for key, name in (("reward", "reward"), ("externalScore", "external_score"), ("success", "success")):
                for end in ("value", "low", "high"):
                    shown, number = result.get(key, {}).get(end), told[result["name"]].get(name, {}).get(end)
                    error = 0.0 if shown is None else 0.5001 * 10 ** -len(shown.partition(".")[2])
                    what = f"status {result['name']} {name} {end}"
                    self.same(what, None if shown is None else float(shown), number, error)

    def metrics(self, text: str) -> None:
        """The gauge of every measure in what /metrics answers."""
        shown = {}
        for labels, number in re.findall(r"^\w*eval_measure\{(.*)\} (\S+)$", text, re.MULTILINE):
            label = dict(re.findall(r'(\w+)="((?:[^"\\\\]|\\\\.)*)"', labels))
            shown[label["candidate"], label["task"], label["measure"]] = float(number)
        told = {
            (each["name"], task, name): figure["value"]
            for each in self.report["candidates"]
            for task, of in each["measures"].items()
            for name, figure in of.items()
        }
        self.same("measures in /metrics", sorted(shown), sorted(told))
        for key in shown.keys() & told.keys():
            self.same(f"/metrics {' '.join(key)}", shown[key], told[key])


def main() -> int:
    """Print what differs; 1 where anything does."""
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(description="Counts every number of an evaluation's report again.")
    parser.add_argument("results")
    parser.add_argument("report")
    parser.add_argument("--status")
    parser.add_argument("--metrics")
    told = parser.parse_args()
    with open(told.report) as file:
        recount = Recount(pq.read_table(told.results).to_pylist(), json.load(file))
    recount.run()
    for path, check in ((told.status, lambda text: recount.status(json.loads(text))), (told.metrics, recount.metrics)):
        if path:
            with open(path) as file:
                check(file.read())
    print("\n".join(recount.wrong) or f"{recount.checked} numbers are the same")
    return 1 if recount.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
