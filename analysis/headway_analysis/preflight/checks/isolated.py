"""Checks that no episode sees traces of another, and that a sandbox reaches no forbidden address."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

from headway_analysis.preflight.arguments import name_of, required_arguments
from headway_analysis.preflight.checks.deterministic import reads
from headway_analysis.preflight.choose import replay, varied
from headway_analysis.preflight.conversation import (
    calls_of,
    difference,
    parameters_of,
    properties_of,
    results_text,
    written,
)
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, Call, PlayedScript, Probe, Sampled, Script
from headway_analysis.preflight.sources import GUIDE
from headway_api.document import JsonView

ID: Final = "isolated"
CHAINS: Final = 2
CANARIES: Final = 8
"""The most tools that the episode with canaries calls."""
CLOCK: Final = 10**8
"""A larger number is taken as a time in seconds since 1970, and not as a counter of episodes."""
_NUMBER: Final = re.compile(r"(?<![\d.:])\d+(?![\d.:])")


def canary(seed: int, number: int) -> str:
    """A marker word that neither model nor environment writes by chance."""
    return "canary" + blake2b(f"{seed}/{number}".encode(), digest_size=6).hexdigest()


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Chains of scripts: an episode twice, then an episode that leaves canaries, then the first one again."""
    found: list[Script] = []
    for number, one in enumerate(varied(baseline.scored, CHAINS)):
        labels = [f"{name}: {number}" for name in ("before", "again", "canary", "behind")]
        word = canary(baseline.facts.seed, number)
        found += [
            replay(ID, labels[0], one),
            replay(ID, labels[1], one, after=labels[0]),
            replay(ID, labels[2], one, calls=_canaries(one, word), answer=word, after=labels[1]),
            replay(ID, labels[3], one, calls=_behind(one), after=labels[2]),
        ]
    return found


def _behind(one: Sampled) -> list[Call]:
    """The episode's own calls, and a call of each further tool that only reads and needs no arguments."""
    calls = list(calls_of(one))
    known = {call.name for call in calls}
    for tool in one.tools:
        name = name_of(tool)
        if name not in known and reads(name) and not parameters_of(tool).get("required"):
            calls.append(Call(name, {}))
    return calls


def _canaries(one: Sampled, word: str) -> list[Call]:
    """A call of each tool, with the canary as every text argument. Other arguments come from the baseline, or
    are random."""
    seen = {result.name: result.arguments for result in one.results}
    drawn, found = random.Random(word), []
    for tool in one.tools[:CANARIES]:
        name = name_of(tool)
        arguments = {**required_arguments(tool, drawn), **seen.get(name, {})}
        for parameter, described in properties_of(parameters_of(tool)).items():
            value = _marked(described, word)
            if value is not None:
                arguments[parameter] = value
        found.append(Call(name, arguments))
    return found


def _marked(schema: Any, word: str) -> Any:
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return None
    items = schema.get("items")
    if schema.get("type") == "array" and isinstance(items, dict) and items.get("type") == "string":
        return [word]
    return word if schema.get("type") == "string" else None


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on traces of earlier episodes, and on destinations that a sandbox reached."""
    reached = [probe for probe in baseline.probes if probe.reached]
    runs = {one.script.label: one for one in played if one.error is None}
    by_id = {one.record.episode_id: one for one in baseline.sampled}
    examples = [_of_probe(probe) for probe in reached]
    left: list[Example] = []
    chains = 0
    for number in range(CHAINS):
        chain = [runs.get(f"{name}: {number}") for name in ("before", "again", "canary", "behind")]
        before, again, _, behind = chain
        if before is None or again is None or behind is None:
            continue
        chains += 1
        seen = by_id.get(before.script.like or "")
        left += [*_left(before, again, behind, seen, canary(baseline.facts.seed, number))][:1]
    value = float(len(left) + len(reached))
    numbers = (("episodes_with_traces", float(len(left))), ("destinations_reached", float(len(reached))))
    if reached or left:
        return Finding(
            ID,
            "Fail",
            _summary(reached, left, chains),
            value,
            0.0,
            advice=_advice(reached, left),
            field="spec.environment.image" if left else None,
            examples=tuple([*examples, *left][:MAX_EXAMPLES]),
            numbers=numbers,
        )
    if not chains and not baseline.probes:
        observed = "Neither episodes nor the network were tested."
        return Finding(ID, "Unknown", observed, threshold=0.0, needs=1)
    observed = f"No trace of {chains} episodes was found in the episode after each"
    if not baseline.probes:
        observed = f"{observed}. No probe of the network answered, so the reach of a sandbox is not known."
        return Finding(ID, "Unknown", observed, 0.0, 0.0, numbers=numbers)
    youngest = min(probe.seconds_after_start for probe in baseline.probes)
    observed = f"{observed}, and {len(baseline.probes)} destinations were tried, none reached; the first "
    observed = f"{observed}{youngest:.1f} s after a sandbox's start."
    more = (*numbers, ("seconds_after_start", youngest))
    return Finding(ID, "Pass", observed, 0.0, 0.0, numbers=more)


def _summary(reached: Sequence[Probe], left: Sequence[Example], chains: int) -> str:
    parts = []
    if reached:
        names = ", ".join(f"{probe.name} ({probe.address})" for probe in reached)
        parts.append(f"NetworkPolicyNotEnforced: a sandbox reached {names}.")
    if left:
        parts.append(f"In {len(left)} of {chains} trials an episode saw traces of another one.")
    return " ".join(parts)


def _advice(reached: Sequence[Probe], left: Sequence[Example]) -> str:
    parts = []
    if reached:
        parts.append("Use a CNI that enforces NetworkPolicy, from the first second of a pod.")
    if left:
        parts.append("Keep state in the environment's instance; give each episode its own folder and ids.")
    return " ".join(parts)


def _of_probe(probe: Probe) -> Example:
    text = f"{probe.name} at {probe.address} answered {probe.seconds_after_start:.1f} s after the pod's start"
    return Example(f"reached: {probe.name}", text)


def _left(
    before: PlayedScript, again: PlayedScript, behind: PlayedScript, seen: Sampled | None, word: str
) -> Iterator[Example]:
    """Signs that an episode saw traces of an earlier one.

    If all runs agree with one another but not with the baseline, they saw traces of the baseline's episodes.
    """
    identity = before.script.like
    known = len(before.results)
    messages_text = _all_text(behind.messages, behind)
    if word in messages_text:
        line = next(line for line in messages_text.splitlines() if word in line)
        yield Example("a value of the episode before", line, identity)
    first, second, third = (_transcript(one, known) for one in (before, again, behind))
    if first == second != third:
        text = difference(second, third, ("before another episode", "after it"))
        yield Example("changed by the episode before", text, identity)
    elif first != second and (_counts(first, second, third) or second == third):
        text = difference(first, second, ("first run", "second run"))
        yield Example("changed by a run before", text, identity)
    elif first == second == third and seen is not None:
        results_then, results_now = (
            results_text(results[:known]) for results in (seen.results, before.results)
        )
        if results_then != results_now:
            text = difference(results_then, results_now, ("baseline", "every run after it"))
            yield Example("changed since the baseline", text, identity)


def _transcript(one: PlayedScript, results: int) -> str:
    return "\n".join([*map(written, one.messages), results_text(one.results[:results])])


def _all_text(messages: Sequence[JsonView], one: PlayedScript) -> str:
    return "\n".join([*map(written, messages), *(result.content for result in one.results)])


def _counts(first: str, second: str, third: str) -> bool:
    """Whether the three transcripts are equal except for numbers that grow from run to run."""
    if len({_NUMBER.sub("#", text) for text in (first, second, third)}) != 1:
        return False
    numbers = (map(int, (found[:18] for found in _NUMBER.findall(text))) for text in (first, second, third))
    changed = [each for each in zip(*numbers, strict=True) if len(set(each)) > 1]
    return bool(changed) and all(a < b < c < CLOCK for a, b, c in changed)


CHECK: Final = Check(
    id=ID,
    meaning="An episode sees traces of another one, or a sandbox reaches a forbidden address.",
    number="Number of traces of one episode in the next, and of destinations that a sandbox reached. The "
    "first episode leaves a marker word in the text arguments of its calls. A trace is that word in "
    "the next episode, or another answer to the same calls than before. The destinations are the "
    "metadata address, API server, internet, and name servers by TCP and by UDP. Some sandboxes are "
    "tested in their first second.",
    threshold="Fails if any trace is found, or any destination is reached (NetworkPolicyNotEnforced). "
    "Unknown if no probe of the network answered; the result still says what the episodes "
    "showed.",
    reason="With shared state, a reward depends on earlier episodes. A destination that a sandbox reaches "
    "can be harmed, or can give the answer away.",
    source=f"{GUIDE}: state is isolated per rollout, and rollouts never touch a live system.",
    advice="Keep state in the environment's instance, and use a CNI that enforces NetworkPolicy.",
    judge=judge,
    scripts=scripts,
    stops_early=True,
    needs_model=False,
)
