"""Claude Code, a coding agent for the command line that uses the Messages API, as its SDK starts it.

`row.more` is what the user says after the first answer. With `own` as `row.prompt_of` it has the program's
own system prompt and tools. Otherwise it has a short prompt, a tool that looks things up and one that reads
files.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    create_sdk_mcp_server,
    tool,
)
from service import reporting, serve

PRESET = {"type": "preset", "preset": "claude_code"}


@tool("look_up", "Look a thing up.", {"key": str})
async def look_up(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"{arguments['key']} is gold"}]}


async def play(payload: dict[str, Any]) -> str:
    instance, folder = payload["instance"], Path(mkdtemp(dir=Path.cwd()))
    (folder / "x.txt").write_text("x is gold\n")
    own = instance.get("prompt_of") == "own"
    options = ClaudeAgentOptions(
        model=instance.get("model", "headway"),
        cwd=folder,
        system_prompt=PRESET if own else "Use the tool, then answer.",
        tools=PRESET if own else ["Read"],
        mcp_servers={} if own else {"desk": create_sdk_mcp_server("desk", tools=[look_up])},
        permission_mode="dontAsk",
        allowed_tools=["Read", "Bash", "mcp__desk__look_up"],
        setting_sources=[],
        max_turns=8,
        env={
            "ANTHROPIC_BASE_URL": payload["metadata"]["endpoint"],
            "ANTHROPIC_API_KEY": "unused",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_TMPDIR": str(folder),
            "HOME": str(folder),
        }
        | instance.get("env", {}),
        stderr=lambda line: print(line, flush=True),
        **instance.get("options", {}),
    )
    answer = ""
    async with ClaudeSDKClient(options) as client:
        for words in [payload["prompt"], *instance.get("more", [])]:
            await client.query(words)
            async for message in client.receive_response():
                print(message, flush=True)
                if isinstance(message, ResultMessage):
                    if message.is_error:
                        raise RuntimeError(f"{message.subtype}: {message.result} {message.errors}")
                    answer = str(message.result)
    return answer


if __name__ == "__main__":
    serve(reporting(play))
