"""What a program in the sandbox is told: its endpoint, the environment's messages, and nothing of the row."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import one_question_environment
from gateway_rig import a_task, gateway_rig, sandboxes
from scripted_model import ANSWER
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

PROGRAM = """
import json, os, sys
with open(os.environ["HEADWAY_EPISODE_FILE"]) as file:
    json.dump(json.load(file) | {"variables": dict(os.environ)}, open(sys.argv[1], "w"))
"""


async def test_the_row_stays_with_the_environment(tmp_path: Path) -> None:
    shutil.copy(one_question_environment.__file__, tmp_path)
    seen = tmp_path / "seen.json"
    row = {"prompt": "Which metal is x?", "answer": "a secret alloy"}
    tok = tokenizer(tmp_path, QWEN3_TEMPLATE)
    async with (
        gateway_rig(tok, ANSWER) as rig,
        sandboxes(tmp_path, "one_question_environment:OneQuestion") as leases,
    ):
        agent = rig.sandboxed_agent(sys.executable, "-c", PROGRAM, str(seen))
        await rig.episodes(agent, leases).run(a_task(row))
    told = json.loads(seen.read_text())
    assert told["messages"] == [{"role": "user", "content": "Which metal is x?"}]
    assert [tool["function"]["name"] for tool in told["tools"]] == ["look_up"]
    assert told["variables"]["OPENAI_BASE_URL"] == told["base_url"]
    assert "a secret alloy" not in seen.read_text()
