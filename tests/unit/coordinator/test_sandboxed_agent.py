"""A program in the sandbox receives its endpoint and the environment's messages, but not the row."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import one_question_environment
import pytest
from gateway_rig import a_task, gateway_rig, sandboxes
from scripted_model import ANSWER
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

PROGRAM = """
import json, os, sys
with open(os.environ["HEADWAY_EPISODE_FILE"]) as file:
    json.dump(json.load(file) | {"variables": dict(os.environ)}, open(sys.argv[1], "w"))
"""


async def seen_by_the_program(tmp_path: Path) -> Any:
    """The episode file and the environment variables that a program in the sandbox sees."""
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
    return json.loads(seen.read_text())


async def test_the_program_does_not_see_the_row(tmp_path: Path) -> None:
    seen = await seen_by_the_program(tmp_path)
    assert seen["messages"] == [{"role": "user", "content": "Which metal is x?"}]
    assert [tool["function"]["name"] for tool in seen["tools"]] == ["look_up"]
    assert seen["variables"]["OPENAI_BASE_URL"] == seen["base_url"]
    assert "a secret alloy" not in json.dumps(seen)


async def test_sagemaker_s_sdk_finds_dummy_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK needs some credentials to send anything, but the model must not read those of the machine."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a real one")
    variables = (await seen_by_the_program(tmp_path))["variables"]
    assert "a real one" not in variables.values()
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"} <= variables.keys()
    assert variables["AWS_EC2_METADATA_DISABLED"] == "true"
