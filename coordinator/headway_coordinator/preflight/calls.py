"""The check that the model's tool calls can be read, before anything that samples them is started."""

from __future__ import annotations

from collections.abc import Sequence

from headway_api.exits import JobError
from headway_coordinator.trajectory.calls import Tool
from headway_coordinator.trajectory.render import Renderer

FIELD = "spec.agent.builtin.toolCallParser"


def readable(tools: Sequence[Tool], chosen: Renderer, parser: str) -> str:
    """A call that the model's template writes is read back, where the environment offers tools.

    Args:
        tools: what the environment offers.
        chosen: how messages are rendered and turns are read.
        parser: `toolCallParser`; one that is named is taken at its word.

    Raises:
        JobError: `ToolCallsUnreadable`.
    """
    if not tools:
        return "the environment offers no tools"
    proof = chosen.proof
    if proof is not None and proof.call:
        return f"tool calls are read as {proof.reader} writes them"
    if parser != "auto":
        return f"tool calls are read by {parser}, as asked; the chat template writes none that shows it"
    family = (
        f"of the family {chosen.family}" if chosen.family else "of a family that config.json does not name"
    )
    raise JobError(
        "ToolCallsUnreadable",
        f"the environment offers {len(tools)} tools, and no reader finds the calls that the chat template of "
        f"the model, {family}, writes: the job would count every call as text; name the model's reader in "
        f"{FIELD}, or put a chat_template.jinja beside the tokenizer that writes tool_calls",
        field=FIELD,
    )
