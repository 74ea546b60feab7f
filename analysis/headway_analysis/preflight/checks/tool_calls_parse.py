"""Checks that the parser can read the base model's tool calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from headway_analysis.measures.tries import sampled_messages, text_of, tool_calls
from headway_analysis.preflight.choose import is_full
from headway_analysis.preflight.conversation import answer_of, excerpt, tool_names
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript, Sampled
from headway_analysis.preflight.shares import enough_without, share
from headway_analysis.preflight.sources import EXACT, GUIDE
from headway_analysis.signals.judges.behaviour import MAX_MALFORMED

ID: Final = "tool-calls-parse"
SOME: Final = 8
SOME_MALFORMED: Final = MAX_MALFORMED / 4
SILENT: Final = 16
"""If at least this many episodes have neither a tool call nor a success, the check warns."""
FIELD: Final = "spec.agent.builtin.toolCallParser"
ENOUGH: Final = enough_without(MAX_MALFORMED)
MARKS: Final = (
    "<tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<function=",
    "<|tool_call",
    "<start_function_call>",
    "functools[",
    "to=functions.",
)
"""The marks with which models of several families begin a tool call."""


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on the share of attempted calls that the parser could not read, or did not notice."""
    if (endpoint := baseline.facts.endpoint) is not None:
        return _of_endpoint(baseline, endpoint)
    readable = malformed = 0
    shown: list[Example] = []
    for one in baseline.sampled:
        made = tool_calls(one.record)
        missed = _missed(one)
        readable += made.readable
        malformed += made.malformed + len(missed)
        texts = [*one.malformed, *missed]
        shown += [Example(f"row {one.group.row}", excerpt(text), one.record.episode_id) for text in texts[:1]]
    total = readable + malformed
    offered = any(one.tools for one in baseline.sampled)
    if total < SOME:
        if baseline.sampled and not offered:
            return Finding(ID, "Pass", "The environment offers no tools.", 0.0, MAX_MALFORMED)
        succeeds = any(is_full(one, baseline.facts) for one in baseline.scored)
        if not total and not succeeds and len(baseline.scored) >= SILENT:
            observed = (
                f"The base model called no tool in {len(baseline.scored)} episodes, and succeeds in none."
            )
            advice = (
                "Check in an episode whether the chat template shows the tools, or name them in the prompt."
            )
            return Finding(
                ID,
                "Warn",
                observed,
                0.0,
                MAX_MALFORMED,
                advice=advice,
                field=FIELD,
                examples=_silent(baseline),
            )
        observed = f"The base model tried {total} tool calls: too few to tell."
        return Finding(
            ID, "Unknown", observed, threshold=MAX_MALFORMED, needs=_needs(total, len(baseline.sampled))
        )
    part = share(malformed, total)
    observed = f"{part} tool calls of the base model cannot be read."
    numbers = tuple((f"read by {name}", float(count)) for name, count in baseline.facts.other_parsers.items())
    ends = (part.value, MAX_MALFORMED, part.low, part.high)
    if part.low <= SOME_MALFORMED:
        return Finding(ID, "Pass", observed, *ends, numbers=numbers)
    return Finding(
        ID,
        "Fail" if part.low > MAX_MALFORMED else "Warn",
        observed,
        *ends,
        _advice(baseline, malformed),
        FIELD,
        examples=tuple(shown[:MAX_EXAMPLES]),
        numbers=numbers,
    )


def _of_endpoint(baseline: Baseline, endpoint: str) -> Finding:
    """The finding for an endpoint: whether it parses its model's calls. The job's own parser reads none."""
    missed = [one for one in baseline.sampled if _missed(one)]
    called = any(tool_calls(one.record).readable for one in baseline.sampled)
    offered = any(one.tools for one in baseline.sampled)
    succeeds = any(is_full(one, baseline.facts) for one in baseline.scored)
    if missed or (offered and not called and not succeeds and len(baseline.scored) >= SILENT):
        observed = (
            f"{endpoint} writes tool calls as text in {len(missed)} episodes."
            if missed
            else f"{endpoint} called no tool in {len(baseline.scored)} episodes, and succeeds in none."
        )
        advice = "Let the endpoint parse tool calls, or name another model of it."
        shown = tuple(
            Example(f"row {one.group.row}", excerpt(_missed(one)[0]), one.record.episode_id)
            for one in missed[:MAX_EXAMPLES]
        )
        return Finding(ID, "Warn", observed, threshold=MAX_MALFORMED, advice=advice, examples=shown)
    observed = f"The endpoint returns the calls of {endpoint} parsed: the job's parser read none of them."
    return Finding(ID, "Unknown", observed, threshold=MAX_MALFORMED)


def _silent(baseline: Baseline) -> tuple[Example, ...]:
    return tuple(
        Example(f"row {one.group.row}", excerpt(answer_of(one) or "(no answer)"), one.record.episode_id)
        for one in baseline.scored[:MAX_EXAMPLES]
    )


def _needs(total: int, episodes: int) -> int:
    """Episodes that give enough calls, at the number of calls per episode so far."""
    return max(ENOUGH, -(-ENOUGH * episodes // max(1, total)))


def _missed(one: Sampled) -> list[str]:
    """Texts of turns without a tool call that look like a call; empty if any turn's calls were malformed."""
    names = [name for name in tool_names(one.tools) if name]
    if not names or (one.record.turns and any(turn.malformed_tool_calls for turn in one.record.turns)):
        return []
    called = re.compile("|".join(rf"[\"'=.]?{re.escape(name)}\b" for name in names))
    texts = [text_of(message) for message in sampled_messages(one.record) if not message.get("tool_calls")]
    return [text for text in texts if _marked(text) and called.search(text)]


def _marked(text: str) -> bool:
    json_call = '"name"' in text and ('"arguments"' in text or '"parameters"' in text)
    return json_call or any(mark in text for mark in MARKS)


def _advice(baseline: Baseline, malformed: int) -> str:
    others = baseline.facts.other_parsers
    best = max(others, key=lambda name: others[name], default=None)
    if best is not None and others[best] > malformed / 2:
        return f"Use parser `{best}`, which reads {others[best]} of the {malformed}."
    return (
        f"The parser in use is `{baseline.facts.tool_call_parser}`: choose the model family's own, "
        "or another chat "
        "template."
    )


CHECK: Final = Check(
    id=ID,
    meaning="The parser cannot read the base model's tool calls.",
    number="Share of attempted tool calls that the parser could not read. Text that names a tool in the "
    "call format of another model family counts as an attempt.",
    threshold=f"Fails if the share is surely above {MAX_MALFORMED:.0%}. Warns if it is surely above "
    f"{SOME_MALFORMED:.0%}, or if {SILENT} episodes have neither a call nor success. Unknown "
    f"below {SOME} attempts, or if an endpoint sampled the baseline.",
    reason="A call that cannot be read wastes a turn. The signal ToolCallsMalformed has the same threshold.",
    source=f"{GUIDE}: format compliance is observed beside the reward. {EXACT}.",
    advice="Choose the parser and chat template of the model's family.",
    judge=judge,
)
