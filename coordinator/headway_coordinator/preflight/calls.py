"""Checks that the model's tool calls can be parsed, before a rollout server is started."""

from __future__ import annotations

from collections.abc import Sequence

from headway_api.bounds import shortened
from headway_api.exits import JobError
from headway_coordinator.trajectory.calls import Tool
from headway_coordinator.trajectory.probe import ASKED, KEY, RESULT, SIMPLE, call, calling
from headway_coordinator.trajectory.proof import Proof
from headway_coordinator.trajectory.render import Renderer

FIELD = "spec.agent.builtin.toolCallParser"
NEW_ROWS = ("at once", "forked", "lost")
"""Values of `PastReasoning` with which past reasoning begins a training row at every turn, or is wrong."""
UNSEEN = ", and does not say what tools there are: name them in the prompt"


def readable(tools: Sequence[Tool], chosen: Renderer, parser: str) -> str:
    """Check that a call written by the model's template is parsed, if the environment offers tools.

    Args:
        tools: the tools that the environment offers.
        chosen: the model's renderer, which also parses turns.
        parser: `toolCallParser`. With `auto`, the template's calls must parse. A parser named by the user is
            trusted, but the template must still accept tool results.

    Returns:
        A sentence that says how tool calls are parsed.

    Raises:
        JobError: `ToolCallsUnreadable`.
    """
    if not tools:
        return "the environment offers no tools"
    proof = chosen.proof
    if proof is not None and proof.call:
        return f"tool calls are read as {proof.reader} writes them"
    if parser == "auto":
        raise _unreadable(
            f"the environment offers {len(tools)} tools, and no reader finds the calls that the chat "
            f"template of the model, {_family(chosen)}, writes. The job would count every call as text; name "
            f"the model's reader in {FIELD}, or put a chat_template.jinja that writes tool_calls beside the "
            "tokenizer"
        )
    if error := _refuses(chosen):
        raise _unreadable(
            f"the environment offers {len(tools)} tools, and the chat template of the model, "
            f"{_family(chosen)}, accepts no tool results ({error}). Every episode would end at its first "
            "call; put a chat_template.jinja that writes tool_calls and takes messages of the role tool "
            "beside the tokenizer"
        )
    found = f"tool calls are read by {parser}, as specified; the chat template does not show whether it fits"
    return found + ("" if _shows(tools, chosen) else UNSEEN)


def limits(proof: Proof) -> list[str]:
    """What does not work although the model's calls are parsed, in the words of the check's message."""
    rows, forks = not proof.row or proof.thinking_row is False, proof.results is False
    altered, starts_row = not proof.special_characters, not (rows or proof.next_message_continues_row)
    found = {
        "an argument that is a list, an object, a number or null may be lost or changed": not proof.values,
        "an argument with quotes, brackets or line breaks may be lost or changed": altered,
        "text before a call is not kept apart from it": not proof.before,
        "of several calls in one turn, not all are read": not proof.parallel,
        "reasoning stays in the text of a turn": proof.reasoning is False,
        "tool_choice of required or of a named tool is refused": not proof.forced,
        "the result of a call begins a training row of its own": rows,
        "the results of several calls in one turn do not all continue its training row": forks,
        "the user's next message begins a training row of its own": starts_row,
        "past reasoning begins a training row at every turn": proof.past_reasoning in NEW_ROWS,
    }
    return [limit for limit, holds in found.items() if holds]


def unread(chosen: Renderer) -> str | None:
    """Why the gateway refuses requests with tools of a user's own agent; None if the calls can be parsed."""
    if chosen.proof is not None and chosen.proof.call:
        return None
    return (
        f"no reader finds the calls that the chat template of the model, {_family(chosen)}, writes. Every "
        "call would be text; put a chat_template.jinja that writes tool_calls beside the tokenizer "
        f"({FIELD} names a reader for the builtin agent only)"
    )


def concerns(tools: Sequence[Tool], chosen: Renderer, *, builtin: bool) -> list[str]:
    """What a user should know about a model that passes `readable`.

    Args:
        tools: the tools that the environment offers. A user's own agent may offer others.
        chosen: the model's renderer, which also parses turns.
        builtin: whether the agent is the platform's own loop.
    """
    if builtin and not tools:
        return []
    if not builtin and (why := unread(chosen)) is not None:
        return [f"the gateway refuses an agent's own tools: {why}"]
    return limits(chosen.proof) if chosen.proof is not None and chosen.proof.call else []


def _unreadable(message: str) -> JobError:
    return JobError("ToolCallsUnreadable", message, field=FIELD)


def _family(chosen: Renderer) -> str:
    return f"of the family {chosen.family}" if chosen.family else "of a family that config.json does not name"


def _refuses(chosen: Renderer) -> str:
    """The template's error on a conversation with a tool's result; empty if it accepts one."""
    try:
        chosen.render_text([*ASKED, calling(call(KEY)), RESULT], SIMPLE, generate=True)
    except Exception as error:  # a template raises whatever its author chose
        return shortened(f"{type(error).__name__}: {error}", 200)
    return ""


def _shows(tools: Sequence[Tool], chosen: Renderer) -> bool:
    """Whether the template writes the names of all tools into the prompt."""
    prompt = chosen.render_text([{"role": "user", "content": "Hello."}], tools, generate=True)
    return all(str(tool.get("function", tool).get("name")) in prompt for tool in tools)
