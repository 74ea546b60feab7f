"""Checks that the same row, seed and tool calls give the same transcript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from headway_analysis.measures.tries import TOOL_ERROR
from headway_analysis.preflight.choose import MAX_CALLS, replay, varied
from headway_analysis.preflight.conversation import difference, written
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, Call, PlayedScript, Sampled, Script, ToolResult
from headway_analysis.preflight.labels import words_of
from headway_analysis.preflight.shares import share
from headway_analysis.preflight.sources import EXACT, GUIDE

ID: Final = "deterministic"
EPISODES: Final = 6
"""Baseline episodes that are replayed."""
READS: Final = frozenset(
    ("get", "lookup", "look", "find", "search", "list", "read", "fetch", "query", "check", "show", "view",
     "describe", "retrieve", "inspect")
)  # fmt: skip
"""Words in a tool's name that suggest that the tool changes nothing."""
MOVES: Final = frozenset(
    ("next", "pop", "poll", "random", "now", "time", "create", "add", "set", "update", "delete", "remove",
     "send", "submit", "write", "book", "cancel", "close", "open", "start", "stop", "out", "mark", "apply",
     "issue")
)  # fmt: skip
"""Words in a tool's name that suggest that the same call may answer differently each time."""


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Scripts that play some baseline episodes twice in a row, and their read-only calls in another order."""
    found: list[Script] = []
    for number, one in enumerate(varied(baseline.scored, EPISODES)):
        first, second, turned = f"first: {number}", f"second: {number}", f"turned round: {number}"
        found += [replay(ID, first, one), replay(ID, second, one, after=first)]
        calls = [Call(result.name, result.arguments) for result in _leading_reads(one.results)]
        if calls:
            found.append(replay(ID, turned, one, calls=[*reversed(calls), *calls], after=second))
    return found


def _leading_reads(results: Sequence[ToolResult]) -> Iterator[ToolResult]:
    """The calls before the first call that may have changed something."""
    return takewhile(lambda result: reads(result.name), results[: MAX_CALLS // 2])


def reads(name: str) -> bool:
    """Whether a tool's name suggests that the tool changes nothing, and always gives the same answer."""
    words = words_of(name)
    return bool(words & READS) and not words & MOVES


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """Compare both runs of each episode, and the first run's tool results with those of the baseline."""
    runs = {one.script.label: one for one in played if one.error is None}
    by_id = {one.record.episode_id: one for one in baseline.sampled}
    examples: list[Example] = []
    tools: list[str] = []
    pairs = different = 0
    for label, first in runs.items():
        if not label.startswith("first: "):
            continue
        number = label.removeprefix("first: ")
        second, turned = runs.get(f"second: {number}"), runs.get(f"turned round: {number}")
        if second is None:
            continue
        pairs += 1
        seen = by_id.get(first.script.like or "")
        found = [*_compared(first, second, seen, baseline.facts.judged), *_turned(first, turned)]
        different += bool(found)
        tools += [tool for tool, _ in found if tool not in tools]
        examples += [example for _, example in found[:1]]
    return _finding(pairs, different, tools, examples, baseline.facts.judged)


def _finding(
    pairs: int, different: int, tools: Sequence[str], examples: Sequence[Example], judged: bool
) -> Finding:
    if not pairs:
        observed = "No baseline episode could be replayed twice."
        return Finding(ID, "Unknown", observed, threshold=0.0, needs=1)
    part = share(different, pairs)
    if not different:
        observed = f"{pairs} baseline episodes were replayed twice, with the same result each time."
        if judged:
            observed = f"{observed} Reward and score were not compared, because they ask a judge."
        return Finding(ID, "Pass", observed, 0.0, 0.0, part.low, part.high)
    named = ", ".join(f"`{tool}`" for tool in tools)
    observed = f"{different} of {pairs} replayed episodes differ with the same row, seed and calls: {named}."
    advice = (
        f"Make {named} depend only on row, seed and calls: no clock, no unseeded draw, no shared state, no "
        "order of a set."
    )
    return Finding(
        ID,
        "Fail",
        observed,
        part.value,
        0.0,
        part.low,
        part.high,
        advice,
        "spec.environment.entrypoint",
        examples=tuple(examples[:MAX_EXAMPLES]),
    )


def _compared(
    first: PlayedScript, second: PlayedScript, seen: Sampled | None, judged: bool
) -> Iterator[tuple[str, Example]]:
    """Differences between both runs, and between first run and baseline: the part to blame, and a diff."""
    identity = first.script.like
    for part, before, after in _parts(first, second, judged):
        if before != after:
            text = difference(before, after, ("first run", "second run"))
            yield part, Example(f"{part}, replayed twice", text, identity)
    if seen is None:
        return
    for result, again in zip(seen.results, first.results, strict=False):
        if result.content != again.content:
            text = difference(result.content, again.content, ("baseline", "replayed"))
            yield result.name, Example(f"{result.name}({written(result.arguments)})", text, identity)
            return


def _parts(first: PlayedScript, second: PlayedScript, judged: bool) -> Iterator[tuple[str, str, str]]:
    yield "reset", "\n".join(map(written, first.messages)), "\n".join(map(written, second.messages))
    yield "tools", "\n".join(map(written, first.tools)), "\n".join(map(written, second.tools))
    for one, other in zip(first.results, second.results, strict=False):
        yield one.name, f"{one.content}\n{one.done}", f"{other.content}\n{other.done}"
    if len(first.results) != len(second.results):
        yield "number of tool results", str(len(first.results)), str(len(second.results))
    if not judged:
        yield "reward", str(first.reward), str(second.reward)
        yield "score", str(first.score), str(second.score)


def _turned(first: PlayedScript, turned: PlayedScript | None) -> Iterator[tuple[str, Example]]:
    """The first difference after the read-only calls were made in another order and repeated."""
    if turned is None:
        return
    contents = {
        (result.name, written(result.arguments)): result.content for result in _leading_reads(first.results)
    }
    for result in turned.results:
        before = contents.get((result.name, written(result.arguments)))
        refused = result.content.startswith(TOOL_ERROR)
        if before is not None and before != result.content and not refused:
            text = difference(before, result.content, ("in the baseline's order", "in another order"))
            yield result.name, Example(f"{result.name}, called in another order", text, first.script.like)
            return


CHECK: Final = Check(
    id=ID,
    meaning="The environment answers the same row, seed and tool calls differently.",
    number=f"Share of up to {EPISODES} baseline episodes that differ when they are replayed twice in "
    "sequence. The check compares first messages, tools, tool results, reward and score, and tool "
    "results with those of the baseline. Tools whose names say that they only read are called again "
    "in another order. Reward and score are not compared if they ask a judge.",
    threshold="Fails if any replayed episode differs. Unknown if none could be replayed.",
    reason="A group compares episodes on one prompt. If the environment differs between them, the model "
    "learns from chance.",
    source=f"{GUIDE}: equal calls give equal results, so run an instance twice and compare. {EXACT}.",
    advice="Make reset depend only on row and seed, and tools only on row, seed and earlier calls.",
    judge=judge,
    scripts=scripts,
    needs_model=False,
)
