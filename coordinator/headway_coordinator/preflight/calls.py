"""Checks that the model's tool calls can be read, before anything that samples them is started."""

from __future__ import annotations

from collections.abc import Sequence

from headway_api.bounds import shortened
from headway_api.exits import JobError
from headway_coordinator.trajectory.calls import Tool
from headway_coordinator.trajectory.probe import ASKED, KEY, RESULT, SIMPLE, call, calling
from headway_coordinator.trajectory.render import Renderer

FIELD = "spec.agent.builtin.toolCallParser"
UNSEEN = ", and does not say what tools there are: name them in the prompt"


def readable(tools: Sequence[Tool], chosen: Renderer, parser: str) -> str:
    """Check that a call written by the model's template can be read back, if the environment offers tools.

    Args:
        tools: what the environment offers.
        chosen: how messages are rendered and turns are read.
        parser: `toolCallParser`; a named one is not questioned.

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
            f"template of the model, {_family(chosen)}, writes: the job would count every call as text; name "
            f"the model's reader in {FIELD}, or put a chat_template.jinja beside the tokenizer that writes "
            "tool_calls"
        )
    if error := _refuses(chosen):
        raise _unreadable(
            f"the environment offers {len(tools)} tools, and the chat template of the model, "
            f"{_family(chosen)}, takes no tool's result ({error}): every episode would end at its first "
            "call, whatever reads it; put a chat_template.jinja beside the tokenizer that writes tool_calls "
            "and takes messages of the role tool"
        )
    found = f"tool calls are read by {parser}, as asked; the chat template writes none that shows it"
    return found + ("" if _shows(tools, chosen) else UNSEEN)


def _unreadable(message: str) -> JobError:
    return JobError("ToolCallsUnreadable", message, field=FIELD)


def _family(chosen: Renderer) -> str:
    return f"of the family {chosen.family}" if chosen.family else "of a family that config.json does not name"


def _refuses(chosen: Renderer) -> str:
    """The template's error on a conversation with a tool's result; empty if it accepts one."""
    try:
        chosen.said([*ASKED, calling(call(KEY)), RESULT], SIMPLE, generate=True)
    except Exception as error:  # a template raises what its author chose
        return shortened(f"{type(error).__name__}: {error}", 200)
    return ""


def _shows(tools: Sequence[Tool], chosen: Renderer) -> bool:
    """Whether the template shows the tools to the model."""
    said = chosen.said([{"role": "user", "content": "Hello."}], tools, generate=True)
    return all(str(tool.get("function", tool).get("name")) in said for tool in tools)
