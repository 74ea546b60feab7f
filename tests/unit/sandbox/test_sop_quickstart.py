"""The example environment "refund desk": what its reward accepts, and what demonstrations look like."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "sop-quickstart"
sys.path.insert(0, str(FOLDER))

import base_model  # noqa: E402
import environment as desk  # noqa: E402
import generate  # noqa: E402

from headway_sandbox.environment import Call, Reward, Transcript  # noqa: E402

CASE = "amber-otter"
ANSWER = desk.expected_answer(CASE)


def judged(answer: str, calls: list[tuple[str, str]] | None = None) -> tuple[float, float]:
    """Reward and score of an episode that made `calls` and ended with `answer`."""
    environment = desk.RefundDesk({})
    environment.reset({"case_id": CASE, "prompt": "x"}, 0)
    made = [
        Call(name, {"item" if name == "get_stock" else "case_id": key}, "", failed=False)
        for name, key in (desk.expected_calls(CASE) if calls is None else calls)
    ]
    transcript = Transcript([{"role": "assistant", "content": answer}], made, truncated=False)
    reward = environment.reward(transcript)
    assert isinstance(reward, Reward)
    return reward.value, environment.score(transcript)


def tagged(answer: dict[str, str]) -> str:
    return f"<final_output>{json.dumps(answer)}</final_output>"


def test_an_episode_by_the_procedure_gets_full_reward() -> None:
    assert judged(tagged(ANSWER)) == (1.0, 1.0)


def test_every_wrong_field_costs_the_same() -> None:
    for name in desk.FIELDS:
        value, score = judged(tagged({**ANSWER, name: "wrong"}))
        assert score == 0.0
        assert value == pytest.approx(5 / 12)


def test_a_right_answer_without_a_look_up_is_not_a_success() -> None:
    value, score = judged(tagged(ANSWER), calls=[])
    assert score == 0.0
    assert value == pytest.approx(5 / 12)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        json.dumps(ANSWER),
        f"<final_decision>{json.dumps(ANSWER)}</final_decision>",
        f"Here: {tagged(ANSWER)}",
        f"{tagged(ANSWER)}\n",
        tagged(ANSWER) * 2,
        tagged({key: value for key, value in ANSWER.items() if key != "item"}),
        tagged({**ANSWER, "note": "x"}),
        tagged(ANSWER).replace('"lead"', '["lead", "desk"]').replace('"desk"', '["lead", "desk"]'),
        f'<final_output>{json.dumps(ANSWER)[:-1]}, "item": "lamp"}}</final_output>',
        "<final_output>[]</final_output>",
        "<final_output>NaN</final_output>",
        f"<final_output>[{json.dumps(ANSWER)}]</final_output>",
        "<final_output></final_output>",
        "<final_output>",
    ],
)
def test_only_the_exact_form_is_read(answer: str) -> None:
    assert judged(answer) == (0.0, 0.0)


def test_no_constant_answer_is_right_for_many_cases() -> None:
    answers = Counter(tuple(desk.expected_answer(case).values()) for case in desk.case_ids())
    assert answers.most_common(1)[0][1] < 0.02 * len(desk.case_ids())


def test_a_configuration_is_refused_if_none_is_expected() -> None:
    with pytest.raises(ValueError, match=r"spec.environment.config: remove \['reward'\]"):
        desk.RefundDesk({"reward": "exact"})


def test_splits_share_no_case_for_any_seed() -> None:
    cases = {split: {row["case_id"] for row in generate.rows(split, 7)} for split in generate.SPLITS}
    assert sum(map(len, cases.values())) == len(set().union(*cases.values())) == len(desk.case_ids())
    assert {row["case_id"] for row in generate.rows("test", 8)} == cases["test"]


def test_the_procedures_text_states_the_rules_that_are_scored() -> None:
    for rules in (desk.DECISION, desk.AMOUNT, desk.METHOD, desk.APPROVAL):
        for key, value in rules.items():
            assert f"{key}: {value}" in desk.PROCEDURE
    assert all(f'"{name}"' in desk.PROCEDURE for name in desk.FIELDS)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return base_model.make_tokenizer(generate.rows("train", 0)[:60], 0)


def test_demonstrations_of_new_rules_score_old_ones_often_fail(
    tokenizer: Any,
) -> None:
    row = {"case_id": CASE, "prompt": "x"}
    environment = desk.RefundDesk({})
    environment.reset(row, 0)
    assert environment.score(base_model.demonstrate(row, tokenizer, lambda: True).transcript) == 1.0
    old = []
    for case in desk.case_ids()[:200]:
        environment.reset({"case_id": case, "prompt": "x"}, 0)
        demonstration = base_model.demonstrate({"case_id": case, "prompt": "x"}, tokenizer, lambda: False)
        old.append(environment.score(demonstration.transcript))
    assert 0.25 < sum(old) / len(old) < 0.5


def test_each_task_word_is_one_token_and_prompts_are_short(tokenizer: Any) -> None:
    for word in [*desk.ADJECTIVES, *desk.ANIMALS, *desk.ITEMS, *desk.AMOUNT.values()]:
        assert len(tokenizer.encode(word)) == 1
    shown = base_model.demonstrate(generate.rows("train", 0)[0], tokenizer, lambda: True)
    assert shown.mask.index(1) < 250
    assert sum(shown.mask) <= 60


def test_demonstrations_decode_to_what_the_chat_template_says(tokenizer: Any) -> None:
    row = generate.rows("train", 0)[0]
    shown = base_model.demonstrate(row, tokenizer, lambda: True)
    specs = [offered.spec for offered in desk.RefundDesk({}).tools()]
    text = tokenizer.apply_chat_template(list(shown.transcript.messages), tools=specs, tokenize=False)
    assert tokenizer.decode(shown.tokens) + "\n" == text
    assert tokenizer.encode(text) == [*shown.tokens, *tokenizer.encode("\n")]


def test_sampled_text_is_read_back_as_the_same_message(tokenizer: Any) -> None:
    renderer = base_model.renderer_for(tokenizer)
    for message in (
        base_model.tool_call("get_stock", "lamp"),
        {"role": "assistant", "content": tagged(ANSWER)},
    ):
        parsed = renderer.parse_response(base_model.completion(renderer, message))
        calls = [{"name": call.name, "arguments": call.arguments} for call in parsed.tool_calls or []]
        assert parsed.content == message["content"]
        assert calls == [call["function"] for call in message.get("tool_calls", [])]


def test_the_same_seed_makes_the_same_tokenizer(tokenizer: Any) -> None:
    again = base_model.make_tokenizer(generate.rows("train", 0)[:60], 0)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    coins = [base_model.coin(random.Random("a"), 0.5)() for _ in range(2)]
    assert coins[0] == coins[1]
