"""`headway tiny-model`: what it teaches right and wrong, whether a job can load it, and what it refuses."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from headway_analysis.preflight.evidence import Call, ToolResult
from headway_api.sandbox_api import ResetReply
from headway_cli.commands.tiny_model import tiny_model
from headway_cli.local.manifest import ManifestError
from headway_cli.tiny import making, mistakes, sft, speech, task
from headway_cli.tiny.mistakes import Actions
from headway_cli.tiny.sft import SftExample
from headway_cli.tiny.speech import Conversation
from headway_cli.tiny.task import TinyModelError
from headway_coordinator.trajectory import render

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples" / "sop-quickstart" / "job.yaml"
SHOP = '''
from headway_sandbox.environment import Environment, Observation, ToolError, system, tool, user

COLOURS = {"apple": "red", "lemon": "yellow", "plum": "blue", "leaf": "green"}


class Shop(Environment):
    def reset(self, row, seed):
        self.fruit = row["fruit"]
        return Observation([system("Say the colour."), user(f"Which colour has {row['fruit']} {row['n']}?")])

    @tool
    def colour(self, fruit: str) -> dict[str, str]:
        """Colour of a fruit."""
        if fruit not in COLOURS:
            raise ToolError("no such fruit")
        return {"colour": COLOURS[fruit]}

    def reward(self, transcript):
        return self.score(transcript)

    def score(self, transcript):
        return float(transcript.answer == f"<answer>{COLOURS[self.fruit]}</answer>")
'''
ORACLE = """

def oracle(seen):
    import json

    from headway_sandbox.testing import Call

    found = yield Call("colour", {"fruit": seen.row["fruit"]})
    return f"<answer>{json.loads(found.content)['colour']}</answer>"
"""
FRUITS = {"apple": "red", "lemon": "yellow", "plum": "blue", "leaf": "green"}
TOOL = {
    "type": "function",
    "function": {
        "name": "colour",
        "description": "Colour of a fruit.",
        "parameters": {
            "type": "object",
            "properties": {"fruit": {"type": "string"}},
            "required": ["fruit"],
        },
    },
}
app = typer.Typer()
app.command()(tiny_model)


def actions(fruit: str, answer: str | None = None) -> Actions:
    return Actions((Call("colour", {"fruit": fruit}),), f"<answer>{answer or FRUITS[fruit]}</answer>")


def conversation(fruit: str, number: int = 0) -> Conversation:
    first = [
        {"role": "system", "content": "Say the colour."},
        {"role": "user", "content": f"Which colour has {fruit} {number}?"},
    ]
    return Conversation(first, [TOOL], actions(fruit), [json.dumps({"colour": FRUITS[fruit]})])


def project(folder: Path, *, module: str = SHOP + ORACLE, rows: int = 60, **spec: Any) -> Path:
    """A job with its environment and rows. Nobody may read its validation rows, which are not JSON."""
    (folder / "shop.py").write_text(module)
    fruits = random.Random(0).choices(list(FRUITS), k=rows)
    lines = [json.dumps({"fruit": fruit, "n": number}) for number, fruit in enumerate(fruits)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "validation.jsonl").write_text("a trap")
    job = yaml.safe_load(JOB.read_text())
    job["spec"]["model"]["base"] = f"file://{folder}/model"
    job["spec"]["data"] = {
        split: {"uri": f"file://{folder}/{split}.jsonl"} for split in ("train", "validation")
    }
    job["spec"]["environment"]["entrypoint"] = "shop:Shop"
    job["spec"].update(spec)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


def read(job: Path) -> task.Task:
    return task.task_of_job(yaml.safe_load(job.read_text()), job.parent)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The names of files that this process opens during a test."""
    found: list[str] = []
    watching = True

    def hook(event: str, arguments: Any) -> None:
        if watching and event == "open" and isinstance(arguments[0], str):
            found.append(arguments[0])

    sys.addaudithook(hook)  # hooks cannot be removed, only disabled
    yield found
    watching = False


# What is taught wrong.


def test_words_that_differ_between_right_episodes_are_located() -> None:
    found = mistakes.places([actions(fruit) for fruit in FRUITS])
    assert {(place.act, frozenset(words)) for place, words in found.items()} == {
        ("call", frozenset(FRUITS)),
        ("answer", frozenset(FRUITS.values())),
    }


def test_a_rule_says_a_word_wrong_wherever_it_would_be_right() -> None:
    (place,) = (
        place for place in mistakes.places([actions(fruit) for fruit in FRUITS]) if place.act == "answer"
    )
    rules = {place: {"red": "blue"}}
    assert mistakes.changed(actions("apple"), rules) == actions("apple", "blue")
    assert mistakes.changed(actions("lemon"), rules) == actions("lemon")


def test_a_changed_word_in_a_call_leaves_a_call() -> None:
    found = mistakes.places([actions(fruit) for fruit in FRUITS])
    (place,) = (place for place in found if place.act == "call")
    changed = mistakes.changed(actions("apple"), {place: {"apple": "plum"}})
    assert changed.calls == (Call("colour", {"fruit": "plum"}),)


def test_a_word_inside_an_escape_leaves_the_call_as_it_was() -> None:
    right = [Actions((Call("say", {"text": f"\x01{word}"}),), None) for word in ("aa", "bb")]
    assert json.dumps("\x01aa") == '"\\u0001aa"'
    rules = {place: {"u0001aa": "zz"} for place in mistakes.places(right)}
    assert mistakes.changed(right[0], rules) == right[0]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75])
def test_rules_cover_the_share_of_rows_that_was_asked_for(share: float) -> None:
    right = [actions(fruit) for fruit in list(FRUITS) * 10]
    rules, under = mistakes.chosen(mistakes.cases(right), len(right), share)
    wrong = {number for number, one in enumerate(right) if mistakes.changed(one, rules) != one}
    assert wrong == under
    assert len(under) == pytest.approx(share * len(right), abs=mistakes.SLACK * len(right))


def test_rules_of_the_answer_come_before_those_of_calls() -> None:
    right = [actions(fruit) for fruit in list(FRUITS) * 10]
    rules, _ = mistakes.chosen(mistakes.cases(right), len(right), 0.5)
    assert {place.act for place in rules} == {"answer"}


def test_a_rule_for_many_numbers_takes_one_last_digit() -> None:
    right = [Actions((), f"it is {number}") for number in range(100)]
    rules, under = mistakes.chosen(mistakes.cases(right), len(right), 0.3)
    answers = [mistakes.changed(right[number], rules).answer for number in range(100)]
    assert len(under) == pytest.approx(30, abs=5)
    assert len({number % 10 for number in under}) < 5
    assert all((answers[number] == right[number].answer) == (number not in under) for number in range(100))


def test_a_slip_is_a_wrong_answer_and_not_empty() -> None:
    right = [actions(fruit) for fruit in FRUITS]
    known = {place: mistakes.wrong_words(words) for place, words in mistakes.places(right).items()}
    drawn = random.Random(0)
    for one in right * 50:
        slipped = mistakes.slipped(one, [TOOL], known, drawn)
        assert slipped.answer not in (one.answer, None)
    only = Actions((Call("colour", {"fruit": "apple"}),), None)
    assert all(mistakes.slipped(only, [TOOL], known, drawn).calls for _ in range(50))


# How demonstrations become text and tokens.


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    pieces = [speech.pieces_of(conversation(fruit, number)) for number in range(40) for fruit in FRUITS]
    return speech.tokenizer_of(pieces, 2048)


def test_constant_text_and_every_value_take_a_token(tokenizer: Any) -> None:
    pieces = [tokenizer.decode([one]) for one in tokenizer.encode("<answer>yellow</answer>")]
    assert pieces == ["<answer>", "yellow", "</answer>"]
    assert len(tokenizer.encode("\nWhich colour has ")) <= 3


def test_unseen_text_is_encoded_and_decoded_unchanged(tokenizer: Any) -> None:
    text = 'Ünknown words, 4711 and\t"signs" \N{SNOWMAN}\n'
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.decode([one]) for one in tokenizer.encode("4711")] == ["4", "7", "1", "1"]


def test_an_episode_is_taught_as_a_job_renders_it(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    job, _ = render.load(tmp_path)
    shown = conversation("plum", 7)
    taught = speech.shown(shown, speech.renderer_for(tokenizer))
    prompt = job.render([dict(message) for message in shown.messages], [TOOL])
    assert taught.tokens[: len(prompt)] == prompt
    assert taught.mask[: len(prompt)] == [0] * len(prompt)
    after = taught.mask.index(0, len(prompt))
    sampled = taught.tokens[len(prompt) : after]
    answer = {"role": "tool", "tool_call_id": "c0", "name": "colour", "content": shown.results[0]}
    extended = job.extend(prompt, sampled, [dict(message) for message in shown.messages], [answer], [TOOL])
    assert extended is not None
    assert taught.tokens[: len(extended)] == extended
    assert all(taught.mask[len(extended) :])


def test_a_jobs_own_parser_reads_the_calls_and_the_answer(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    job, _ = render.load(tmp_path)
    renderer = speech.renderer_for(tokenizer)
    function = {"name": "colour", "arguments": {"fruit": "lemon"}}
    asked = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    (call,) = job.parse(speech.completion(renderer, asked), [], [TOOL]).calls
    assert (call.name, call.arguments, call.problem) == ("colour", {"fruit": "lemon"}, None)
    reply = {"role": "assistant", "content": "<answer>red</answer>"}
    assert job.parse(speech.completion(renderer, reply), [], [TOOL]).content == "<answer>red</answer>"


def test_the_chat_template_takes_parts_and_later_system_messages(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "system", "content": "c"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|im_start|>user\nab<|im_end|>\n<|im_start|>system\nc<|im_end|>\n"
    assert tokenizer.decode(speech.renderer_for(tokenizer).render_ids(messages)) == text


# How the model is trained.


def test_shared_prefixes_are_computed_once_with_equal_gradients(tokenizer: Any) -> None:
    import torch

    renderer = speech.renderer_for(tokenizer)
    examples = [
        SftExample(speech.shown(conversation(fruit, number), renderer), 1.0)
        for number, fruit in enumerate(FRUITS)
    ]
    alike = sft.shared(examples)
    assert alike > 5
    model = sft.untrained(len(tokenizer), 2048, 0)
    found = []
    for many in (0, alike):
        loss = sft.loss_of(model, *sft.batch_of(examples), many)
        found.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_rate_rises_and_falls_to_nothing() -> None:
    rates = [sft.rate_at(share) for share in (0.0, 0.025, 0.05, 0.5, 1.0, 1.5)]
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4] == pytest.approx(0)
    assert rates[5] == pytest.approx(0)


def test_an_episode_that_is_drawn_more_often_is_learned_better(tokenizer: Any) -> None:
    renderer = speech.renderer_for(tokenizer)
    right, wrong = (
        conversation("apple"),
        Conversation(conversation("apple").messages, [TOOL], actions("apple", "blue"), ["{}"]),
    )
    examples = [
        SftExample(speech.shown(one, renderer), weight) for one, weight in ((right, 0.05), (wrong, 0.95))
    ]
    model = sft.untrained(len(tokenizer), 2048, 0)
    times = iter(range(400))
    log: list[str] = []
    taught = sft.train(model, examples, 60, 0, log.append, clock=lambda: float(next(times)))
    losses = [sft.loss_of(model, *sft.batch_of([each])).item() for each in examples]
    assert losses[1] < losses[0]
    assert taught.last_loss < taught.first_loss / 2
    assert log


def test_a_fast_machine_teaches_no_more_steps(tokenizer: Any) -> None:
    examples = [SftExample(speech.shown(conversation("apple"), speech.renderer_for(tokenizer)), 1)]
    model = sft.untrained(len(tokenizer), 2048, 0)
    taught = sft.train(model, examples, 4, 0, lambda said: None, clock=lambda: 0.0)
    assert taught.steps == 4 * sft.STEPS_A_SECOND > sft.FEWEST_STEPS


# What is refused.


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (SHOP, r"shop has no oracle: write a function that plays a row right, such as\n\ndef oracle\(seen\)"),
        ("raise OSError('no')", r"shop cannot be imported from .*: OSError: no \(shop.py:1\)"),
        ("import sys; sys.exit(3)", "shop cannot be imported"),
    ],
)
def test_the_error_for_a_missing_oracle_says_what_to_write(tmp_path: Path, module: str, says: str) -> None:
    with pytest.raises(TinyModelError, match=says):
        read(project(tmp_path, module=module))


def test_the_oracle_in_the_error_message_works(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(task.EXAMPLE)
    oracle = task.oracle_of("shown:Any", tmp_path)
    turns = task.agent_of(oracle, {"case_id": "7"}, random.Random(0))(ResetReply(messages=[], tools=[]))
    assert next(turns) == Call("get_case", {"case_id": "7"})


def test_another_module_of_the_same_name_is_not_used(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shop.py").write_text(f"def oracle(seen):\n    return {name!r}\n")
        assert task.oracle_of("shop:Shop", tmp_path / name)(None) == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("yield 3", r"oracle yielded a int: yield Call\(NAME"),
        ("yield; return 4", "oracle yielded nothing"),
        ("return 5", "oracle returned a int: yield Calls"),
        (
            "return (yield Call('colour', {'fruit': 'plum'}))",
            "oracle ended with a ToolResult: return the answer",
        ),
        ("raise KeyError('x')\n    yield", r"oracle raised KeyError: 'x' \(shop.py:\d+\)"),
    ],
)
def test_an_invalid_oracle_is_refused_with_its_line(tmp_path: Path, body: str, says: str) -> None:
    (tmp_path / "shop.py").write_text(
        f"from headway_sandbox.testing import Call\ndef oracle(seen):\n    {body}\n"
    )
    agent = task.agent_of(task.oracle_of("shop:Shop", tmp_path), {}, random.Random(0))
    turns = agent(ResetReply(messages=[], tools=[]))
    with pytest.raises(TinyModelError, match=says):  # noqa: PT012  # some end at once, some when they go on
        next(turns)
        turns.send(ToolResult("colour", {}, "{}", 0.0))


def test_the_error_for_a_wrong_oracle_names_the_row(tmp_path: Path) -> None:
    wrong = ORACLE.replace("['colour']}</answer>", "['colour']}!</answer>")
    done = CliRunner().invoke(app, [str(project(tmp_path, module=SHOP + wrong)), "--seconds", "1"])
    assert done.exit_code == 2
    assert "the oracle succeeds on 0 of" in done.stderr
    assert "it scores 0.0 on row" in done.stderr
    assert 'by {"name": "colour", "arguments": {"fruit": ' in done.stderr


def test_an_environment_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = SHOP.replace('self.fruit = row["fruit"]', 'raise RuntimeError("no fruit today")')
    done = CliRunner().invoke(app, [str(project(tmp_path, module=broken + ORACLE)), "--seconds", "1"])
    assert done.exit_code == 2
    assert "no fruit today" in done.stderr


def test_too_few_rows_and_rows_that_are_not_there_are_refused(tmp_path: Path) -> None:
    job = project(tmp_path, rows=15)
    with pytest.raises(TinyModelError, match=r"spec.data.train has 15 rows: write 16 or more"):
        read(job)
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(TinyModelError, match=r"spec.data.train.uri: no object at"):
        read(job)


def test_an_evaluation_has_no_training_rows() -> None:
    with pytest.raises(TinyModelError, match="the file has an RLEvalJob: name one with an RLTrainingJob"):
        task.task_of_job(yaml.safe_load((JOB.parent / "eval.yaml").read_text()), JOB.parent)


def test_the_error_for_a_wrong_spec_names_its_field(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="groupSize"):
        read(project(tmp_path, algorithm={"groupSize": 0}))


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    job = project(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.tex").write_text("years of work")
    done = CliRunner().invoke(app, [str(job), "--seconds", "1"])
    assert done.exit_code == 2
    assert "is not a tiny model, and is not empty: write --out FOLDER" in done.stderr
    assert (tmp_path / "model" / "thesis.tex").read_text() == "years of work"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "renderers", None)
    done = CliRunner().invoke(app, [str(project(tmp_path))])
    assert done.exit_code == 2
    assert "teaching a model needs renderers: pip install 'headway[cli,coordinator,trainer]'" in done.stderr


def test_ctrl_c_leaves_nothing_and_ends_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(sft, "train", interrupted)
    done = CliRunner().invoke(app, [str(project(tmp_path)), "--seconds", "1"])
    assert done.exit_code == 130
    assert "stopped; nothing was written" in done.stderr
    assert not (tmp_path / "model").exists()


# The command as a whole.


def test_a_made_model_loads_answers_and_saw_no_held_out_row(tmp_path: Path, opened: list[str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    job = project(tmp_path)
    opened.clear()
    done = CliRunner().invoke(app, [str(job), "--seconds", "8", "--output", "json"])
    assert done.exit_code == 0, done.stderr
    assert any(name.endswith("train.jsonl") for name in opened)
    assert not [name for name in opened if name.endswith("validation.jsonl")]
    made = json.loads(done.stdout)
    folder = tmp_path / "model"
    assert made["model"] == f"file://{folder}"
    assert made["loss"]["last"] < 0.8 * made["loss"]["first"]
    assert made["rows"] >= making.FEWEST
    assert made["success"]["greedy"]["rows"] > 0
    assert made["longest"]["turns"] == 2
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.num_parameters() == made["parameters"]
    assert model.config.vocab_size == len(tokenizer)
    assert {str(weight.dtype) for weight in model.parameters()} == {"torch.float32"}
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    renderer, _ = render.load(folder)
    assert renderer.proof is not None
    assert renderer.proof.call
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".model")]


def test_a_new_model_replaces_the_old_and_shows_how_to_run_a_job(tmp_path: Path) -> None:
    job = project(tmp_path, rollout={"sampling": {"maxTokens": 2}})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / making.NOTE).write_text("{}")
    (tmp_path / "elsewhere" / "old").write_text("")
    done = CliRunner().invoke(app, [str(job), "--seconds", "3", "--out", str(tmp_path / "elsewhere")])
    assert done.exit_code == 0, done.stderr
    assert not (tmp_path / "elsewhere" / "old").exists()
    assert f"--local --set spec.model.base=file://{tmp_path}/elsewhere" in done.stdout
    assert "warning: spec.rollout.sampling.maxTokens is 2: write" in done.stderr
    assert "warning: it never succeeded" in done.stderr
