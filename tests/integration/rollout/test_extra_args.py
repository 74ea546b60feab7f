"""Which of `spec.rollout.engine.extraArgs` vLLM's parser reads as a flag that the spec already sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headway_api.spec.rollout import OWN_FLAGS, Engine

SET = {
    "--tensor-parallel-size": "7",
    "-tp": "7",
    "--seed": "77",
    "--port": "7777",
    "--host": "there",
    "--dtype": "float16",
    "--api-key": "k",
    "--hf-overrides": '{"a": 1}',
    "--hf-config-path": "there",
    "--logprobs-mode": "raw_logits",
    "--max-model-len": "77",
    "--max-loras": "7",
    "--served-model-name": "other",
    "--tokenizer": "other",
    "--uds": "there",
    "--worker-cls": "other",
    "--worker-extension-cls": "other",
    "--no-enable-lora": None,
    "--enable-scale-out": None,
}
"""Flag -> a value other than the default; None if the flag has no value."""


@pytest.fixture(scope="module")
def parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


def is_free(*arguments: str) -> bool:
    try:
        Engine(extraArgs=arguments)
    except ValueError:
        return False
    return True


def spellings(flag: str, value: str | None) -> Iterator[list[str]]:
    """Each way to write the flag on a command line, with some that the parser refuses."""
    for end in range(1, len(flag) + 1):
        for name in {flag[:end], flag[:end].replace("-", "_").replace("__", "--", 1)}:
            yield [name] if value is None else [name, value]
            if value is not None:
                yield [f"{name}={value}"]
                yield [f"{name}{value}"]
                yield [f"{name}.a", "1"]
                yield [f"{name}.a.b=1"]


def parsed(parser: Any, arguments: list[str]) -> dict[str, Any] | None:
    try:
        return vars(parser.parse_args(arguments))
    except (SystemExit, ValueError, IndexError):
        return None


@pytest.mark.parametrize("flag", SET)
def test_no_spelling_of_a_flag_of_ours_is_accepted(parser: Any, flag: str) -> None:
    untouched = parsed(parser, [])
    taken = [parser._option_string_actions[flag].dest]
    seen = 0
    assert untouched is not None
    for arguments in spellings(flag, SET[flag]):
        found = parsed(parser, arguments)
        if found is not None and any(found[dest] != untouched[dest] for dest in taken):
            seen += 1
            assert not is_free(*arguments), arguments
    assert seen, "no spelling sets it: the test has the wrong value"


def test_every_flag_of_ours_exists_in_vllm(parser: Any) -> None:
    assert {*OWN_FLAGS} <= {*parser._option_string_actions}


def test_every_other_flag_of_vllm_is_accepted(parser: Any) -> None:
    refused = {flag for flag in parser._option_string_actions if not is_free(flag, "1")}
    assert refused == {*OWN_FLAGS}
