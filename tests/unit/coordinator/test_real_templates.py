"""Real models' templates and turns, taken from published packages, and read as in a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import models_page
import pytest
import real_templates
import turns_of_models
import vocabularies
from real_templates import REAL, Real

from headway_api.exits import JobError
from headway_coordinator.gateway.adjacent import Adjacent
from headway_coordinator.gateway.participants import Participants
from headway_coordinator.preflight import calls as preflight
from headway_coordinator.trajectory.probe import (
    ANSWER,
    ASKED,
    ASKED_AGAIN,
    KEY,
    RESULT,
    SIMPLE,
    call,
    calling,
)
from headway_coordinator.trajectory.proof import Probe
from headway_coordinator.trajectory.render import Renderer, choose

pytestmark = [pytest.mark.ci, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]
BY_NAME = {real.models: real for real in REAL}
LAUNCH = ("Qwen3.6", "gpt-oss", "Gemma-4-31B")
"""Launch models of Amazon SageMaker MTRL with published weights."""
SPELLED_OUT = (
    "gpt-oss/harmony-marker-in-arguments",
    "gpt-oss/harmony-marker-in-reasoning",
    "mistral/v13think-marker-in-arguments",
)
"""Turns in which the model writes a special token's text as plain letters.

An encoder always makes the token of it.
"""
WRITTEN = {
    "granite": '<|tool_call|>[{"name": "look_up", "arguments": {"key": "brave-otter"}}]',
    "lfm2": '<|tool_call_start|>[look_up(key="brave-otter")]<|tool_call_end|>',
    "hermes": '<tool_call>\n{"name": "look_up", "arguments": {"key": "brave-otter"}}\n</tool_call>',
}
"""Reader -> a call as the documentation of its family shows it."""
NAMED = [real.models for real in REAL if real.parser]
shown = models_page.shown_of


def test_the_models_page_shows_every_models_results() -> None:
    assert (ROOT / "docs/models.md").read_text() == models_page.page(), "run: make models"


@pytest.mark.parametrize("name", LAUNCH)
def test_launch_models_support_all_of_their_format(name: str) -> None:
    real = BY_NAME[name]
    _, proof = shown(real)
    assert real.ids, "rendered with ids that are not the model's"
    assert (proof.call, proof.values, proof.special_characters, proof.before, proof.reasoning) == (True,) * 5
    assert (proof.forced, proof.row, proof.thinking_row, proof.next_message_continues_row) == (True,) * 4
    assert proof.parallel is (name != "gpt-oss"), "Harmony has one call a turn, the others have several"
    assert proof.past_reasoning in ("kept", "dropped")


@pytest.mark.parametrize("name", BY_NAME)
def test_past_reasoning_follows_the_template_without_forks(name: str) -> None:
    _, proof = shown(BY_NAME[name])
    assert proof.past_reasoning not in ("forked", "lost")
    assert proof.thinking_row is not False


@pytest.mark.parametrize("name", BY_NAME)
def test_every_no_on_the_page_is_explained(name: str) -> None:
    real = BY_NAME[name]
    assert ("**no**" in models_page.facts(shown(real)[1])) == bool(real.why)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_preflight_reports_each_no_of_the_page(name: str) -> None:
    real = BY_NAME[name]
    facts = models_page.facts(shown(real)[1])
    chosen = choose(real_templates.tokenizer(real), real.model_type)
    concerns = preflight.concerns(SIMPLE, chosen, builtin=True)
    if facts[0] == "yes":
        assert bool(concerns) == ("**no**" in facts or facts[-1] == "at once"), concerns
    else:
        assert concerns == [], "the check fails instead"
    assert preflight.concerns([], chosen, builtin=True) == []
    proof = shown(real)[1]
    if proof.before and proof.row:
        assert _continues(chosen, real) == (not real.note), "text before a call, then its result"


def _continues(chosen: Renderer, real: Real) -> bool:
    """Whether the row continues after the result of a call that follows text."""
    message = calling(call(KEY), content="I look it up.")
    turn = Probe(chosen, real_templates.tokenizer(real)).turn(ASKED, message, SIMPLE, RESULT)
    assert turn is not None
    extended = chosen.extend(turn.prompt, turn.sampled, [*ASKED, message], [RESULT], SIMPLE)
    return extended is not None


@pytest.mark.parametrize("name", BY_NAME)
def test_user_messages_may_follow_each_other_and_results(name: str) -> None:
    """Later system messages may do the same.

    A template that refuses such an order gets them joined into one message.
    """
    real = BY_NAME[name]
    renderer = choose(real_templates.tokenizer(real), real.model_type)
    called = [*ASKED, calling({**call(KEY), "id": "a1b2c3d4e"}), {**RESULT, "tool_call_id": "a1b2c3d4e"}]
    results = [called] if shown(real)[1].call else []
    for before in (ASKED, *results):
        for role in ("user", "system"):
            messages = [*before, {"role": role, "content": "Consider calm-heron."}]
            text = renderer.render_text(Adjacent(renderer).accepted(messages), SIMPLE, generate=True)
            assert "Consider calm-heron." in text


@pytest.mark.parametrize("name", BY_NAME)
def test_a_turn_without_text_does_not_end_the_conversation(name: str) -> None:
    """A model may sample only the end of its turn."""
    real = BY_NAME[name]
    renderer = choose(real_templates.tokenizer(real), real.model_type)
    messages = [*ASKED, {"role": "assistant", "content": ""}, ASKED_AGAIN]
    tools = SIMPLE if shown(real)[1].call else []
    assert ASKED_AGAIN["content"] in renderer.render_text(messages, tools, generate=True)


@pytest.mark.parametrize(("name", "unshown"), [("Kimi K2.5", []), ("Qwen3", ["messages.name"])])
def test_a_users_name_is_listed_if_the_template_shows_none(name: str, unshown: list[str]) -> None:
    real = BY_NAME[name]
    renderer = choose(real_templates.tokenizer(real), real.model_type)
    assert Participants(renderer).unshown([ASKED[1] | {"name": "surveyor"}]) == unshown


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LFM2.5", ["an argument with quotes"]),
        ("Hermes 3", ["an argument that is a list", "text before a call"]),
        ("DeepSeek V3.2", ["the result of a call begins a training row"]),
        ("Llama 3.1", ["text before a call", "of several calls in one turn"]),
        ("DeepSeek-R1-Distill", ["text before a call", "past reasoning"]),
        ("Qwen3", []),
    ],
)
def test_concerns_name_what_a_reader_does_not_support(name: str, words: list[str]) -> None:
    real = BY_NAME[name]
    concerns = preflight.concerns([], choose(real_templates.tokenizer(real), real.model_type), builtin=False)
    assert len([one for one in concerns if any(one.startswith(word) for word in words)]) == len(words), (
        concerns
    )
    assert bool(concerns) == bool(words)


def test_no_turn_of_a_real_model_is_misread() -> None:
    found = {turn.name: turns_of_models.judged(turn) for turn in turns_of_models.turns()}
    assert len(found) > 350
    assert [name for name, how in found.items() if how == "wrong"] == []


@pytest.mark.parametrize("name", NAMED)
def test_template_without_calls_is_refused_until_parser_is_named(name: str) -> None:
    real = BY_NAME[name]
    tok = real_templates.tokenizer(real)
    with pytest.raises(JobError) as refused:
        preflight.readable(SIMPLE, choose(tok, real.model_type), "auto")
    assert refused.value.termination.reason == "ToolCallsUnreadable"
    message = preflight.readable(SIMPLE, choose(tok, real.model_type, real.parser), real.parser)
    assert "as specified" in message
    assert ("name them in the prompt" in message) == (name == "SmolLM3")


def test_template_without_results_is_refused_with_any_parser() -> None:
    real = BY_NAME["Gemma 3"]
    with pytest.raises(JobError) as refused:
        preflight.readable(
            SIMPLE, choose(real_templates.tokenizer(real), real.model_type, "gemma3"), "gemma3"
        )
    termination = refused.value.termination
    assert termination.reason == "ToolCallsUnreadable"
    assert "accepts no tool results" in termination.message
    assert "roles must alternate" in termination.message


@pytest.mark.parametrize("name", NAMED)
def test_a_named_reader_keeps_one_row(name: str) -> None:
    real = BY_NAME[name]
    tok = real_templates.tokenizer(real)
    reader = choose(tok, real.model_type, real.parser)
    prompt = reader.render(ASKED, SIMPLE)
    sampled = [*tok.encode(WRITTEN[real.parser], add_special_tokens=False), reader.stop_token_ids[0]]
    [read] = reader.parse(sampled, prompt, SIMPLE).calls
    assert (read.name, read.arguments) == ("look_up", KEY)
    history = [*ASKED, calling(call(KEY))]
    row = reader.extend(prompt, sampled, history, [RESULT], SIMPLE)
    assert row is not None
    assert row[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert "gold" in tok.decode(row[len(prompt) + len(sampled) :])
    answer = [*tok.encode(ANSWER["content"], add_special_tokens=False), reader.stop_token_ids[0]]
    further = reader.extend(row, answer, [*history, RESULT, ANSWER], [ASKED_AGAIN], SIMPLE)
    assert further is not None
    assert further[: len(row) + len(answer)] == [*row, *answer]


def test_gemma_4_s_vocabulary_gives_the_expected_ids() -> None:
    tok = real_templates.vocabulary("gemma-4")
    found = vocabularies.samples(real_templates.file(real_templates.GEMMA_4))
    assert len(found) > 40
    for text, ids in found:
        assert tok.encode(text, add_special_tokens=False) == ids, text


BY_SENTENCE_PIECE = {
    'Look up "brave-otter".\n  Then stop.': [
        *(7180, 1350, 1113, 2241, 1226, 29501, 1090, 1128, 3354, 781, 29473, 3247, 2883, 29491),
    ],
    "Zoë  水 😀 \x01\t12345": [
        *(1822, 29477, 29687, 1027, 30460, 29473, 31343, 29473, 30302, 780, 29508, 29518, 29538, 29549),
        29550,
    ],
    '{"key": [1, null, {"b": "</s"}]}': [
        *(10598, 2267, 2032, 1501, 29508, 29493, 2009, 29493, 10598, 29494, 2032, 24384, 29481, 18163),
        9973,
    ],
    "    return x\n\n\n": [1028, 1372, 2086, 781, 781, 781],
}
"""Text -> the ids that SentencePiece 0.2.3 gives it with either of Mistral's models."""


@pytest.mark.parametrize("name", real_templates.MISTRAL_MODELS)
def test_mistral_s_vocabularies_give_the_expected_ids(name: str) -> None:
    """SentencePiece adds a space before each text. Mistral's templates write this space explicitly."""
    tok = real_templates.vocabulary(name)
    for text, ids in BY_SENTENCE_PIECE.items():
        assert tok.encode(f" {text}", add_special_tokens=False) == ids, text
        assert tok.decode(ids) == f" {text}"
    assert tok.encode("[TOOL_CALLS]", add_special_tokens=False) == [5]


@pytest.mark.parametrize(
    ("family", "model", "name", "turns"),
    [
        ("qwen3-xml", "Qwen/Qwen3.8-27B", "Qwen3.6", 24),
        ("qwen3-hermes", "Qwen/Qwen3-0.6B", "Qwen3", 38),
        ("qwen3-hermes", "Qwen/Qwen3-4B-Instruct-2507", "Qwen3 Instruct 2507", 5),
        ("qwen3-xml", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder", 18),
        ("gemma4", "google/gemma-4-31B-it", "Gemma-4-31B", 48),
        ("llama", "meta-llama/Llama-3.3-70B-Instruct", "Llama 3.3", 24),
        ("llama", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "Llama 4", 10),
        ("deepseek", "deepseek-ai/DeepSeek-V3-0324", "DeepSeek V3", 17),
        ("deepseek", "deepseek-ai/DeepSeek-V3.1", "DeepSeek V3.1", 12),
        ("mistral", "mistralai/Mistral-Small-3.2-24B-Instruct-2506", "Mistral Small 3.2", 9),
        ("mistral", "mistralai/Devstral-Small-2507", "Devstral Small 2507", 2),
        ("mistral", "mistralai/Ministral-3-14B-Reasoning-2512", "Ministral 3 Reasoning", 13),
        ("gpt-oss", "openai/gpt-oss-20b", "gpt-oss", 51),
    ],
)
def test_ids_are_those_of_the_models_own_tokenizer(family: str, model: str, name: str, turns: int) -> None:
    """The package has turns with the ids that the model's own tokenizer gave, including special tokens."""
    tok = real_templates.tokenizer(BY_NAME[name])
    found = [one for one in _ids(family) if model in one["models"] and one.get("output_token_ids")]
    assert len(found) == turns
    for one in found:
        text, ids = one["raw_output"], one["output_token_ids"]
        if one["id"] in SPELLED_OUT:
            assert tok.decode(ids, skip_special_tokens=False) == text, one["id"]
        else:
            assert tok.encode(text, add_special_tokens=False) == ids, one["id"]


def _ids(family: str) -> list[dict[str, Any]]:
    paths = sorted(real_templates.file(f"canitoolcall/_data/fixtures/{family}").glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", ["Qwen3.5 of 4B and more", "Qwen3.6"])
@pytest.mark.parametrize("tool", [None, "look_up"])
def test_a_forced_call_ends_reasoning_that_the_prompt_begins(name: str, tool: str | None) -> None:
    """These prompts end inside reasoning, where the text of a call is not a call."""
    real = BY_NAME[name]
    tokenizer = real_templates.tokenizer(real)
    chosen = choose(tokenizer, real.model_type)
    prompt, forced = chosen.render(ASKED, SIMPLE), chosen.force(tool)
    assert forced is not None
    rest = "" if tool else "look_up>\n"
    rest += "<parameter=key>\nbrave-otter\n</parameter>\n</function>\n</tool_call><|im_end|>"
    parsed = chosen.parse([*forced, *tokenizer.encode(rest, add_special_tokens=False)], prompt, SIMPLE)
    assert [(each.name, each.arguments, each.problem) for each in parsed.calls] == [
        ("look_up", {"key": "brave-otter"}, None)
    ]
    assert (parsed.reasoning, parsed.content) == (None, "")


def test_the_proof_checks_that_a_forced_call_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    real = BY_NAME["Qwen3.6"]
    tokenizer = real_templates.tokenizer(real)
    chosen = choose(tokenizer, real.model_type)
    assert Probe(chosen, tokenizer).begins()
    monkeypatch.setattr(type(chosen), "without_reasoning", lambda self: [])
    assert not Probe(chosen, tokenizer).begins(), "the call would be part of the thought"
