"""Stop strings: which tokens are sampled, answered and trained, and how the row continues."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from episodes import version
from model_families import FAMILIES, spoken
from open_rollout import USER, rig
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.records import VersionSpan
from headway_coordinator.engines.vllm import Request, Sampled, _body
from headway_coordinator.gateway import stops
from headway_coordinator.gateway.asks import Ask, Sampling, Session
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.gateway.refusals import GatewayError
from headway_coordinator.trajectory.linearize import linearize
from headway_coordinator.trajectory.render import choose

BY_FAMILY = {family.name: family for family in FAMILIES}
END = 0


def text(ids: Sequence[int]) -> str:
    """Decodes tokens, each of which is a letter."""
    return "".join(map(chr, ids))


def sampled(words: str, *, closed: bool = False, finish: str = "stop") -> Sampled:
    tokens = [*map(ord, words), *([END] if closed else [])]
    half = len(tokens) // 2
    spans = [
        VersionSpan(start=0, end=half, version=version(1)),
        VersionSpan(start=half, end=len(tokens), version=version(2)),
    ]
    return Sampled(tokens, [-float(i) for i in range(len(tokens))], spans, finish, 0)


@pytest.mark.parametrize(
    ("words", "given", "left", "stop"),
    [
        ("thought END more", ["END"], "thought END", "END"),
        ("abcabc", ["c", "bc"], "abc", "bc"),
        ("abcabc", ["xyz", "ab"], "ab", "ab"),
        ("nothing", ["END"], "nothing", None),
        ("nothing", [], "nothing", None),
    ],
)
def test_a_turn_ends_with_the_token_that_completes_a_stop(
    words: str, given: list[str], left: str, stop: str | None
) -> None:
    found, ended = stops.ended(text, sampled(words, closed=True), given, [END])
    kept = found.tokens if stop else found.tokens[:-1]
    assert (text(kept), ended) == (left, stop)
    assert found.logprobs == [-float(i) for i in range(len(found.tokens))]
    assert (found.versions[0].start, found.versions[-1].end) == (0, len(found.tokens))
    assert found.finish_reason == "stop"


def test_the_stop_token_is_not_part_of_the_text() -> None:
    turn = sampled("abc", closed=True)
    assert stops.ended(text, turn, [chr(END)], [END]) == (turn, None)


def test_a_turn_cut_by_length_has_no_stop_string() -> None:
    turn = sampled("abc", finish="length")
    assert stops.ended(text, turn, ["x"], [END]) == (turn, None)


def test_a_stop_that_only_the_server_saw_still_ends_the_turn() -> None:
    turn = sampled("abc")
    assert stops.ended(text, turn, ["x"], [END]) == (turn, "x")


@pytest.mark.parametrize(
    ("content", "stop", "left"),
    [
        ("a\nObservation: b", "Observation:", "a\n"),
        ("a\nObservation:", "Observation: ", "a\n"),
        ("a", "b", "a"),
        ("a", "\n\n", "a"),
        ("a", None, "a"),
    ],
)
def test_an_answer_is_returned_without_its_stop(content: str, stop: str | None, left: str) -> None:
    message = {"role": "assistant", "content": content, "reasoning_content": content}
    assert stops.without(message, stop) == {"role": "assistant", "content": left, "reasoning_content": left}


def test_the_server_decodes_only_if_a_request_has_a_stop() -> None:
    plain = Request([1], 4, 1.0, 1.0, 7, [0])
    params = _body("m", "s", plain)["sampling_params"]
    assert (params["detokenize"], "stop" in params) == (False, False)
    params = _body("m", "s", Request([1], 4, 1.0, 1.0, 7, [0], ["END"]))["sampling_params"]
    assert (params["detokenize"], params["stop"]) == (True, ["END"])


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("gpt-oss", ("final", "message", "analysis", "assistant", "|", "json", "to=")),
        ("Qwen3.5", ("think", "</", "tool_call", "function")),
        ("Qwen2.5, Qwen3", ("think", ">")),
        ("Gemma 4", ("thought", "call")),
        ("Command", ("END", "THINKING")),
        ("Mistral Tekken", ("ARGS", "[")),
    ],
)
def test_a_part_of_the_familys_tags_may_not_be_a_stop(name: str, refused: tuple[str, ...]) -> None:
    family = BY_FAMILY[name]
    markup = stops.markup(choose(spoken(family), family.model_type))
    for stop in refused:
        with pytest.raises(GatewayError) as found:
            stops.require_text(["Observation:", stop], markup)
        assert (found.value.status, found.value.param) == (400, "stop")
        assert repr(stop) in str(found.value)
    stops.require_text(["Observation:", "\n\n", "\n", "</code>", "\nfinal answer:"], markup)


def test_a_whole_tag_may_be_a_stop() -> None:
    family = BY_FAMILY["Qwen2.5, Qwen3"]
    markup = stops.markup(choose(spoken(family), family.model_type))
    stops.require_text(["</tool_call>", "</think>"], markup)
    assert "<|im_end|>" not in markup


def test_a_family_without_tags_forbids_no_stop_string() -> None:
    family = BY_FAMILY["Llama 3 JSON"]
    assert stops.markup(choose(spoken(family), family.model_type)) == ()


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


REASONING = "I look. Observation: it is lead.<|im_end|>"
ANSWER = "It is gold.<|im_end|>"


@pytest.mark.parametrize("family", ["qwen3", "unknown"])
@pytest.mark.parametrize("again", ["", "Observation:", " Observation:"])
async def test_a_stopped_turn_and_the_next_are_one_row(
    tok: Any, monkeypatch: pytest.MonkeyPatch, family: str, again: str
) -> None:
    """smolagents writes the stop string after the answer again. Other agents leave it out.

    The row continues with the family's own renderer and with the model's template.
    """
    monkeypatch.setattr("open_rollout.choose", lambda tok, _: choose(tok, family))
    async with rig(tok, REASONING, ANSWER) as r:
        _, first = await r.chat(stop=["Observation:"])
        [choice] = first["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "Observation:")
        assert choice["message"]["content"].strip() == "I look."
        message = {"role": "assistant", "content": choice["message"]["content"].rstrip() + again}
        status, _ = await r.chat(USER, message, {"role": "user", "content": "Observation: gold"})
        session = r.rollout.session
        spoken = r.model.spoken[session.episode_id]
    assert status == 200
    assert (session.forks, [turn.sampled_tokens for turn in session.turns]) == (
        0,
        [len(turn.sampled) for turn in spoken],
    )
    [row] = linearize(session.graph, session.unseen)
    trained = [token for token, mask in zip(row.tokens, row.mask, strict=True) if mask]
    assert tok.decode(trained) == "I look. Observation:" + ANSWER
    assert "I look. Observation:<|im_end|>" in tok.decode(row.tokens)


CODE = "I look.\n<code>\nlook_up('x')\n</code>\nat once<|im_end|>"
RAN = "\nCalling tools:\n[look_up]"
OTHER = {"role": "user", "content": "Observation: gold"}


async def code(r: Any, behind: str, turns: int) -> list[dict[str, Any]]:
    """A history of an agent that adds text after each answer and its stop string, as smolagents does."""
    history: list[dict[str, Any]] = [USER]
    for _ in range(turns):
        status, answer = await r.chat(*history, stop=["</code>"])
        assert status == 200, answer
        content = answer["choices"][0]["message"]["content"] + "</code>" + behind
        history += [{"role": "assistant", "content": content.strip()}, OTHER]
    return history


def joined(tok: Any) -> Any:
    """A vocabulary in which the stop string's last letter and a line end are one token, as in Qwen3's."""
    found = copy.deepcopy(tok)
    found.add_tokens([">\n"])
    return found


@pytest.mark.parametrize("family", ["qwen3", "unknown"])
@pytest.mark.parametrize("sampled_with_the_line_end", [False, True])
async def test_text_written_after_a_stop_continues_the_row(
    tok: Any, monkeypatch: pytest.MonkeyPatch, family: str, sampled_with_the_line_end: bool
) -> None:
    """Sampled tokens are never encoded again, because their joint text may give other tokens."""
    monkeypatch.setattr("open_rollout.choose", lambda tok, _: choose(tok, family))
    words = joined(tok)
    async with rig(words, CODE) as r:
        if not sampled_with_the_line_end:
            r.model._tok = tok
        await code(r, RAN, 3)
        session = r.rollout.session
    assert (session.forks, len(session.turns)) == (0, 3)
    [row] = linearize(session.graph, session.unseen)
    before_stop = CODE.partition("\nat once")[0]
    trained = [token for token, mask in zip(row.tokens, row.mask, strict=True) if mask]
    assert words.decode(trained) == 3 * (before_stop + "\n" * sampled_with_the_line_end)
    assert words.decode(row.tokens).count(f"{before_stop}{RAN}<|im_end|>") == 2


async def test_a_row_contains_the_text_written_after_a_stop(tok: Any) -> None:
    """A history with other text after the stop string is a fork."""
    async with rig(tok, CODE) as r:
        user, answer, other, *_ = await code(r, RAN, 2)
        elsewhere = answer | {"content": answer["content"].replace("Calling tools:", "Nothing ran:")}
        status, _ = await r.chat(user, elsewhere, other, answer, other, stop=["</code>"])
        session = r.rollout.session
    assert (status, session.forks) == (200, 1)
    assert [tok.decode(row.tokens).count("Nothing ran") for row in linearize(session.graph)] == [0, 1]


async def test_a_stop_token_longer_than_the_clients_text_forks(tok: Any) -> None:
    """The stop string's last token includes a line end, which the client's history lacks."""
    async with rig(joined(tok), CODE) as r:
        await code(r, " ran it", 2)
        assert [one.reason for one in r.rollout.session.drifts.values()] == ["content"]


async def test_reasoning_before_a_stop_causes_a_fork(tok: Any) -> None:
    async with rig(tok, f"<think>\nHm.\n</think>\n\n{CODE}", CODE) as r:
        await code(r, RAN, 3)
        assert [(one.reason, one.count) for one in r.rollout.session.drifts.values()] == [("thought", 1)]


class Deaf:
    """A server that ignores stop strings."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    async def generate(self, session: str, request: Request, timeout: float) -> Sampled:
        spans = [VersionSpan(start=0, end=len(self.tokens), version=version(0))]
        return Sampled(self.tokens, [-0.5] * len(self.tokens), spans, "stop", 0)


async def test_text_after_a_stop_is_not_kept_or_billed(tok: Any) -> None:
    engine = Deaf(tok.encode(REASONING, add_special_tokens=False))
    gateway = Gateway(choose(tok, "qwen3"), engine, 1000, 5.0)
    session = Session("e", 3, Sampling(1.0, 1.0, 64))
    found = await gateway.chat(session, Ask([USER], stop=("Observation:",)))
    [row] = linearize(session.graph)
    trained = [token for token, mask in zip(row.tokens, row.mask, strict=True) if mask]
    assert tok.decode(trained) == "I look. Observation:"
    assert found.turn.sampled_tokens == len(trained)


async def test_log_probabilities_are_those_of_the_row(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        _, answer = await r.chat(logprobs=True)
        _, without = await r.chat()
    found = answer["choices"][0]["logprobs"]["content"]
    assert "".join(one["token"] for one in found) == ANSWER
    assert {one["logprob"] for one in found} == {-0.5}
    assert bytes(byte for one in found for byte in one["bytes"]).decode() == ANSWER
    assert len(found) == answer["usage"]["completion_tokens"]
    assert without["choices"][0]["logprobs"] is None


async def test_a_stop_within_markup_is_refused_by_name(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        status, answer = await r.chat(stop=["think"])
        assert (status, answer["error"]["param"]) == (400, "stop")
        assert "'<think>'" in answer["error"]["message"]
        assert r.rollout.session.turns == []
        assert (await r.chat(stop=["Observation:"]))[0] == 200


async def test_a_lenient_episode_records_what_it_ignored(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        assert (await r.chat(n=2))[0] == 400
        r.rollout.lenient = True
        for _ in range(2):
            assert (await r.chat(n=2, seed=1, response_format={"type": "json_object"}))[0] == 200
        assert r.rollout.session.ignored == {"n": 2, "seed": 2, "response_format": 2}
