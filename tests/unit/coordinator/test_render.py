"""Turning messages into tokens and back: which renderer is chosen. Sampled tokens are never rewritten."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import NFC
from toy_tokenizer import QWEN3_TEMPLATE, llama_tokenizer, tokenizer
from transformers import PreTrainedTokenizerFast

from headway_api.exits import JobError
from headway_coordinator.trajectory import render
from headway_coordinator.trajectory.lengths import extent, longest_token
from headway_coordinator.trajectory.render import PROBE_TOOLS, PROBES, Renderer, Template, Typed, choose
from headway_coordinator.trajectory.template import decoded, template_text

PROMPT = PROBES[1]
RESULT = {"role": "tool", "tool_call_id": "call-0-0", "content": "gold"}
DROPS_OLD = "loop.index0 > last.query and message.reasoning_content"
"""The condition in QWEN3_TEMPLATE that decides which reasoning it keeps."""
XML_FAMILY_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
"""Qwen 3.5's renderer refuses a tokenizer without these tokens."""


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("qwen"), QWEN3_TEMPLATE)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module", params=["typed", "template"])
def both(request: pytest.FixtureRequest, qwen: Any, other: Any) -> tuple[Renderer, Any]:
    if request.param == "typed":
        return choose(qwen, "qwen3"), qwen
    return choose(other, "qwen3"), other


def test_family_renderer_is_chosen_if_it_agrees_with_template(qwen: Any) -> None:
    assert isinstance(choose(qwen, "qwen3"), Typed)
    assert isinstance(choose(qwen, "qwen3_moe"), Typed)


@pytest.mark.parametrize("family", ["qwen3", "", "nobody-knows", "llama"])
def test_otherwise_the_models_own_template_is_rendered(other: Any, family: str) -> None:
    assert isinstance(choose(other, family), Template)


HERMES_CALL = '<tool_call>\n{"name": "look_up", "arguments": {"key": "brave-otter"}}\n</tool_call><|im_end|>'


def test_requested_hermes_is_read_for_every_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hermes reader is used even if a family's renderer for XML calls agrees with the template."""
    tok = tokenizer(tmp_path, QWEN3_TEMPLATE)
    tok.add_special_tokens({"additional_special_tokens": XML_FAMILY_TOKENS})
    monkeypatch.setattr(render, "agrees", lambda typed, _: True)

    def name_read(parser: str) -> str | None:
        [call] = (
            choose(tok, "qwen3_5", parser)
            .parse(tok.encode(HERMES_CALL, add_special_tokens=False), [], PROBE_TOOLS)
            .calls
        )
        return call.name

    assert choose(tok, "qwen3_5").name == "qwen3.5"
    assert name_read("auto") is None
    assert name_read("hermes") == "look_up"


def test_hermes_takes_the_familys_renderer_where_that_reads_it(qwen: Any) -> None:
    assert isinstance(choose(qwen, "qwen3", "hermes"), Typed)


def test_hermes_without_its_tags_is_refused() -> None:
    words = Tokenizer(WordLevel({"?": 0, "end": 1}, unk_token="?"))
    tok = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", eos_token="end")
    assert isinstance(choose(tok, ""), Template)
    with pytest.raises(JobError, match="lacks; use auto") as refused:
        choose(tok, "", "hermes")
    assert refused.value.termination.field == "spec.agent.builtin.toolCallParser"


def test_both_renderers_render_what_the_template_says(both: tuple[Renderer, Any]) -> None:
    chosen, tok = both
    for messages in PROBES:
        text = template_text(tok, messages, PROBE_TOOLS, generate=True)
        assert tok.decode(chosen.render(messages, PROBE_TOOLS)) == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(junk=st.lists(st.integers(0, 500), max_size=20))
def test_extending_keeps_what_was_sampled_token_by_token(both: tuple[Renderer, Any], junk: list[int]) -> None:
    chosen, tok = both
    stop = tok.convert_tokens_to_ids("<|im_end|>")
    think = {tok.convert_tokens_to_ids(t) for t in ("<think>", "</think>")}
    sampled = [t for t in junk if t not in (*chosen.stop_token_ids, *think)] + [stop]
    prompt = chosen.render(PROMPT, PROBE_TOOLS)
    parsed = chosen.parse(sampled, prompt, PROBE_TOOLS)
    history = [*PROMPT, {"role": "assistant", "content": parsed.content}]
    extended = chosen.extend(prompt, sampled, history, [RESULT], PROBE_TOOLS)
    if extended is None:
        pytest.fail("nothing but an open reasoning block may keep a turn from being extended")
    assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    added = tok.decode(extended[len(prompt) + len(sampled) :])
    assert "gold" in added
    assert added.endswith("<|im_start|>assistant\n")


def test_an_extension_is_what_the_template_would_have_written(both: tuple[Renderer, Any]) -> None:
    chosen, tok = both
    text = '<tool_call>\n{"name": "look_up", "arguments": {"key": "brave-otter"}}\n</tool_call><|im_end|>'
    sampled = tok.encode(text, add_special_tokens=False)
    prompt = chosen.render(PROMPT, PROBE_TOOLS)
    [call] = chosen.parse(sampled, prompt, PROBE_TOOLS).calls
    assert (call.name, call.arguments, call.problem) == ("look_up", {"key": "brave-otter"}, None)
    function = {"name": "look_up", "arguments": json.dumps(call.arguments)}
    spoken = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    history = [*PROMPT, spoken]
    extended = chosen.extend(prompt, sampled, history, [RESULT], PROBE_TOOLS)
    assert extended is not None
    whole = template_text(tok, [*history, RESULT], PROBE_TOOLS, generate=True)
    assert tok.decode(extended) == whole


def test_a_template_that_keeps_reasoning_overrules_the_renderer(
    tmp_path: Path,
) -> None:
    template = QWEN3_TEMPLATE.replace(DROPS_OLD, "message.reasoning_content")
    assert template != QWEN3_TEMPLATE
    tok = tokenizer(tmp_path, template)
    chosen = choose(tok, "qwen3")
    assert isinstance(chosen, Template)
    prompt = chosen.render(PROMPT, [])
    sampled = tok.encode("<think>Hm.</think>Gold.<|im_end|>", add_special_tokens=False)
    history = [*PROMPT, {"role": "assistant", "content": "Gold.", "reasoning_content": "Hm."}]
    extended = chosen.extend(prompt, sampled, history, PROBES[0], [])
    assert extended is not None
    assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]


def spelled(tok: Any, text: str) -> list[int]:
    """Tokens of a text that a model samples letter by letter, with the end of the turn."""
    letters = [token for letter in text for token in tok.encode(letter, add_special_tokens=False)]
    assert letters != tok.encode(text, add_special_tokens=False)
    return [*letters, tok.convert_tokens_to_ids("<|im_end|>")]


def test_a_user_message_leaves_sampled_tokens_unchanged(both: tuple[Renderer, Any]) -> None:
    chosen, tok = both
    prompt, sampled = chosen.render(PROMPT, []), spelled(tok, "It is gold, as you know.")
    history = [*PROMPT, {"role": "assistant", "content": chosen.parse(sampled, prompt, []).content}]
    extended = chosen.extend(prompt, sampled, history, PROBES[0], [])
    assert extended is not None
    assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert tok.decode(extended) == template_text(tok, [*history, *PROBES[0]], [], generate=True)


def test_a_user_message_drops_reasoning_where_the_template_does(qwen: Any) -> None:
    """So the model is trained on the same prompts with which it will be served."""
    chosen = choose(qwen, "qwen3")
    prompt = chosen.render(PROMPT, [])
    sampled = qwen.encode("<think>\nHm.\n</think>\n\nGold.<|im_end|>", add_special_tokens=False)
    parsed = chosen.parse(sampled, prompt, [])
    history = [*PROMPT, {"role": "assistant", "content": "Gold.", "reasoning_content": parsed.reasoning}]
    assert parsed.reasoning == "Hm."
    assert chosen.extend(prompt, sampled, history, PROBES[0], []) is None
    assert "Hm." not in qwen.decode(chosen.render([*history, *PROBES[0]], []))
    assert chosen.extend(prompt, sampled, history, [RESULT], []) is not None


BARE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role != 'assistant' %}{{- message.content }}
    {%- else %}CONTENT{%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
APART = "{{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' + message.content }}"


@pytest.mark.parametrize("new", [PROBES[0], [RESULT]], ids=["user", "tool"])
@pytest.mark.parametrize(
    ("content", "keeps"),
    [
        ("{{- message.content.split('</think>')[-1].lstrip('\\n') }}", False),
        ("{{- message.content if loop.last else message.content.split('</think>')[-1] }}", False),
        ("{{- '<think>\\n\\n</think>\\n\\n' + message.content.split('</think>')[-1] }}", False),
        (APART, True),
        ("{{- message.content }}", True),
    ],
    ids=["strips-all", "strips-all-but-the-last", "empties-all", "keeps", "knows-no-reasoning"],
)
def test_a_turn_is_extended_where_its_reasoning_is_kept(
    tmp_path: Path, content: str, keeps: bool, new: list[dict[str, Any]]
) -> None:
    """If a template drops the reasoning of all past turns, no rendered text shows that there was any."""
    tok = tokenizer(tmp_path, BARE.replace("CONTENT", content))
    chosen = choose(tok, "qwen2")
    assert isinstance(chosen, Template)
    # The text of the reasoning also occurs elsewhere in the conversation.
    asked = [*PROMPT, {"role": "assistant", "content": "Gold."}, {"role": "user", "content": "Is it Gold?"}]
    prompt = chosen.render(asked, [])
    sampled = tok.encode("<think>\nGold?\n</think>\n\nIt is Gold?<|im_end|>", add_special_tokens=False)
    parsed = chosen.parse(sampled, prompt, [])
    assert (parsed.reasoning or "").strip() == "Gold?"
    turn = {"role": "assistant", "content": parsed.content}
    extended = chosen.extend(
        prompt, sampled, [*asked, turn | {"reasoning_content": parsed.reasoning}], new, []
    )
    assert (extended is not None) == keeps
    if extended is not None:
        assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    unreasoned = tok.encode("Gold.<|im_end|>", add_special_tokens=False)
    spoken = [*asked, {"role": "assistant", "content": "Gold."}]
    assert chosen.extend(prompt, unreasoned, spoken, new, []) is not None


def test_a_template_that_drops_reasoning_between_calls_is_chosen(
    tmp_path: Path,
) -> None:
    template = QWEN3_TEMPLATE.replace(DROPS_OLD, "false")
    assert template != QWEN3_TEMPLATE
    assert isinstance(choose(tokenizer(tmp_path, template), "qwen3"), Template)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>{nonsense}</tool_call><|im_end|>", "JSONDecodeError"),
        ('<tool_call>{"arguments": {}}</tool_call><|im_end|>', "missing name"),
        ('<tool_call>{"name": "look_up", "arguments": [1]}</tool_call><|im_end|>', "not an object"),
        ('<tool_call>{"name": "look_up", "arguments": "7"}</tool_call><|im_end|>', "not an object"),
        ('<tool_call>{"name": 7, "arguments": {}}</tool_call><|im_end|>', "not a string"),
        ('<tool_call>{"name": "look_up"', "unclosed"),
        ('<tool_call>{"name": "look_up", "arguments": {"key": "\\ud83d"}}</tool_call><|im_end|>', "as JSON"),
        ('<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call><|im_end|>', "as JSON"),
        ('<tool_call>{"name": "look_up", "arguments": {"key": NaN}}</tool_call><|im_end|>', "as JSON"),
        (
            f'<tool_call>{{"name": "look_up", "arguments": {"[" * 3000}</tool_call><|im_end|>',
            "RecursionError",
        ),
        (f'<tool_call>{{"name": "look_up", "arguments": {"1" * 5000}}}</tool_call><|im_end|>', "ValueError"),
    ],
)
def test_a_malformed_call_is_kept_with_what_is_wrong(
    both: tuple[Renderer, Any], text: str, problem: str
) -> None:
    chosen, tok = both
    [call] = chosen.parse(tok.encode(text, add_special_tokens=False), [], PROBE_TOOLS).calls
    assert problem in str(call.problem)
    assert call.arguments is None
    assert call.raw
    assert "<" not in call.raw


@cache
def bounded(name: str) -> Any:
    """A tokenizer of each kind that has a longest token. The one named "composing" joins characters."""
    if name == "llama":
        return llama_tokenizer()
    found = tokenizer(Path(mkdtemp()))
    if name == "composing":
        found.backend_tokenizer.normalizer = NFC()
    return found


@pytest.mark.parametrize("name", ["qwen", "llama", "composing"])
@settings(max_examples=150)
@given(data=st.data())
def test_a_texts_length_gives_a_lower_bound_of_its_tokens(name: str, data: st.DataObject) -> None:
    tok = bounded(name)
    longest = longest_token(tok)
    assert longest is not None
    piece = st.one_of(
        st.text(max_size=20), st.sampled_from([*tok.get_vocab(), " " * 50, "e\u0301", "\u212b"])
    )
    text = "".join(data.draw(st.lists(piece, max_size=20)))
    assert extent([text]).tokens(longest) <= len(tok.encode(text, add_special_tokens=False))
    assert extent(["word, " * 100]).tokens(longest) >= 100


def test_a_token_for_any_unknown_text_gives_no_bound() -> None:
    words = Tokenizer(WordLevel({"?": 0, "end": 1}, unk_token="?"))
    assert longest_token(PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")) is None
    unknown = Tokenizer(BPE({"?": 0, "a": 1, "b": 2}, [], unk_token="?", fuse_unk=True))
    assert longest_token(PreTrainedTokenizerFast(tokenizer_object=unknown, unk_token="?")) is None


def test_opaque_template_cannot_extend_a_turn_cut_by_length(other: Any) -> None:
    chosen = choose(other, "")
    prompt = chosen.render(PROMPT, [])
    assert (
        chosen.extend(prompt, [1, 2], [*PROMPT, {"role": "assistant", "content": "x"}], [RESULT], []) is None
    )


def test_a_template_that_rewrites_history_is_not_extended(tmp_path: Path) -> None:
    forgetful = tokenizer(
        tmp_path, "{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    chosen = choose(forgetful, "")
    prompt, stop = chosen.render(PROMPT, []), forgetful.convert_tokens_to_ids("<|im_end|>")
    history = [*PROMPT, {"role": "assistant", "content": "x"}]
    assert chosen.extend(prompt, [5, stop], history, [RESULT], []) is None


def test_a_model_without_template_or_tokenizer_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="add tokenizer"):
        render.load(tmp_path)
    plain = tokenizer(tmp_path)
    plain.chat_template = None
    folder = tmp_path / "plain"
    plain.save_pretrained(folder)
    with pytest.raises(JobError, match="chat template"):
        render.load(folder)


RAISES = ("{{ raise_exception('no such role') }}", "{{ messages[0].content + 7 }}")


@pytest.mark.parametrize("template", RAISES)
def test_a_template_that_raises_is_used_without_a_family(template: str, tmp_path: Path) -> None:
    assert isinstance(choose(tokenizer(tmp_path, template), "qwen3"), Template)


def test_ids_are_decoded_as_the_tokenizer_does(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path)
    ids = tok.encode("<|im_start|>user\nA gold  customer , twice.<|im_end|>", add_special_tokens=False)
    assert decoded(tok, ids) == tok.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def test_a_tokenizer_with_code_of_its_own_decodes_itself(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path)

    class Own(type(tok)):  # type: ignore[misc]
        def decode(self, ids: list[int], **_: Any) -> str:
            return f"{len(ids)} ids"

    tok.__class__ = Own
    assert decoded(tok, [1, 2]) == "2 ids"
