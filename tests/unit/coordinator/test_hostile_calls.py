"""A reader reads anything that a model writes between the tags of a call, or reports a malformed call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_families import FAMILIES, spoken

from headway_coordinator.trajectory import values
from headway_coordinator.trajectory.calls import UNREADABLE, Call, called
from headway_coordinator.trajectory.written import BY_NAME, Written

every_grammar = pytest.mark.parametrize("name", BY_NAME)

ONE = {
    "gemma4": "call:f{{a:{0}}}",
    "glm": "f<arg_key>a</arg_key><arg_value>{0}</arg_value>",
    "qwen-coder": "<function=f><parameter=a>{0}</parameter></function>",
    "minimax": '<invoke name="f"><parameter name="a">{0}</parameter></invoke>',
    "deepseek-v3": (
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{{"a": {0}}}\n```<｜tool▁call▁end｜>'
    ),
    "deepseek-v3.1": '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{{"a": {0}}}<｜tool▁call▁end｜>',
    "kimi": '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{{"a": {0}}}<|tool_call_end|>',
    "mistral-tekken": 'f[ARGS]{{"a": {0}}}',
    "command": '[{{"tool_name": "f", "parameters": {{"a": {0}}}}}, {{"tool_name": "g", "parameters": {{}}}}]',
    "llama4": '{{"name": "f", "parameters": {{"a": {0}}}}}{{"name": "g", "parameters": {{}}}}',
}
ONE |= {"seed-oss": ONE["qwen-coder"]}
ONE["hy3"] = "<tool_call>f<tool_sep><arg_key>a</arg_key><arg_value>{0}</arg_value></tool_call>".replace(
    ">", ":opensource>"
)
ONE["deepseek-v3.2"] = (
    ONE["minimax"].replace("invoke", "｜DSML｜invoke").replace("parameter", "｜DSML｜parameter")
)
AS_PYTHON, AS_JSON = (
    "[f(a={0}), g(b=1)]",
    '[{{"name": "f", "arguments": {{"a": {0}}}}}, {{"name": "g", "arguments": {{}}}}]',
)


def framed(name: str, value: str) -> str:
    """Calls in the notation of a family's reader. One argument is written as `value`."""
    grammar = BY_NAME[name]
    form = ONE.get(name, AS_PYTHON if name in ("pythonic", "gemma3", "lfm2") else AS_JSON)
    return getattr(grammar, "opening", "") + form.format(value) + getattr(grammar, "closing", "")


def checked(calls: list[Call]) -> list[Call]:
    for one in calls:
        assert (one.problem is None) == (one.name is not None and one.arguments is not None)
        assert (one.kind is None) == (one.problem is None)
    return calls


DEPTHS = st.sampled_from([1, 31, 33, 96, 400, 900, 970, 985, 1_000, 5_000])
HOSTILE = st.one_of(
    st.builds(lambda n, pair: pair[0] * n + pair[1] * n, DEPTHS, st.sampled_from(["[]", "()"])),
    st.builds(lambda n: '{"b":' * n + "1" + "}" * n, DEPTHS),
    st.builds(
        lambda n, part: part * n, DEPTHS, st.sampled_from(["[", "{", "(", "]", '"', "-", "{a:", " [", "a."])
    ),
    st.builds(lambda n, part: part.join(["1"] * n), DEPTHS, st.sampled_from(["+", "**", "if ", ",", "."])),
    st.builds(
        lambda n, part: part[0] + part[1] * n, DEPTHS, st.sampled_from(["0xf", "19", "-9", "1e", "1_"])
    ),
    st.sampled_from(["1e999", "NaN", r'"\ud800"', "\0", "\ufeff", "\x0c1", "'\r\n\r'", "f'{1}'"]),
)


@every_grammar
@settings(max_examples=60)
@given(value=HOSTILE, cut=st.integers(0, 40))
def test_no_argument_value_makes_a_reader_raise(name: str, value: str, cut: int) -> None:
    call = framed(name, value)
    for text in (call, call[: len(call) - cut], call + call):
        checked(BY_NAME[name].read(text, {"f": {}})[1])


@pytest.mark.parametrize("name", ["pythonic", "gemma3", "lfm2"])
@pytest.mark.parametrize("value", ["+".join(["1"] * 400), "0x" + "f" * 4_000])
def test_calls_in_python_keep_their_sampled_text(name: str, value: str) -> None:
    calls = checked(BY_NAME[name].read(framed(name, value), {"f": {}})[1])
    assert [one.raw for one in calls] == [f"f(a={value})", "g(b=1)"]
    assert [one.problem is None for one in calls] == [False, True]


@pytest.mark.parametrize("line", ["\n", "\r\n", "\r"])
def test_python_calls_over_several_lines_keep_their_text(line: str) -> None:
    first, second = f"f(a='ä',{line}  b=1)", "g( c = 'ü' )"
    _, calls = BY_NAME["pythonic"].read(f" [{first},{line}{second}] ", {"f": {}})
    assert [(one.raw, one.problem) for one in calls] == [(first, None), (second, None)]


@every_grammar
@pytest.mark.parametrize(("levels", "taken"), [(31, True), (32, False), (96, False), (900, False)])
def test_arguments_are_not_deeper_than_a_sandbox_reads(name: str, levels: int, taken: bool) -> None:
    value = "[" * levels + "]" * levels
    first, *_ = checked(BY_NAME[name].read(framed(name, value), {"f": {"a": {"type": "array"}}})[1])
    if taken:
        assert (first.problem, first.name) == (None, "f")
    else:
        # A reader that cannot parse such a value returns it as text, or reports a problem.
        assert first.problem or first.arguments == {"a": value}


def test_arguments_that_are_too_deep_are_reported_as_such() -> None:
    deep: Any = 1
    for _ in range(33):
        deep = [deep]
    found = called("x", "f", {"a": deep})
    assert (found.arguments, found.kind) == (None, "arguments")
    assert found.problem == "arguments are out of bounds: nested more than 32 levels deep"


@pytest.mark.parametrize("error", UNREADABLE)
def test_an_error_in_a_grammar_makes_a_malformed_call(error: type[Exception]) -> None:
    class Failing:
        name, marks, any_tool, named = "failing", ("[",), None, None

        def read(self, text: str, tools: values.Schemas) -> tuple[str, list[Call]]:
            raise error("too deep")

    tok = spoken(FAMILIES[0])
    ids = tok.encode("[f(a=1)]", add_special_tokens=False)
    parsed = Written(tok, Failing(), []).read(ids, [], [])
    assert [(one.raw, one.problem) for one in parsed.calls] == [("[f(a=1)]", f"{error.__name__}: too deep")]
