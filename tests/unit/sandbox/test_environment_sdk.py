"""The environment SDK as its authors use it."""

import pytest

from headway_sandbox.environment import Done, Environment, Observation, ToolError, Transcript, tool
from headway_sandbox.server import EnvironmentLoadError, load
from headway_sandbox.tools import declared


class Base:
    @tool
    def first(self, text: str) -> str:
        """Says it again,
        twice.

        text: what to say
        """
        return text * 2


class Desk(Base):
    @tool
    def second(
        self, count: int, ratio: float = 1.0, *, names: list[str] | None = None, deep: bool = False
    ) -> dict[str, int]:
        """Counts."""
        return {"count": count}

    @tool
    def last(self) -> Done:
        return Done({"over": True})

    @tool
    def moody(self) -> str:
        raise ToolError("not today")

    def helper(self) -> None: ...


def test_tools_are_declared_in_written_order_with_openai_specs() -> None:
    tools = declared(Desk())
    assert [offered.name for offered in tools] == ["first", "second", "last", "moody"]
    assert tools[0].spec == {
        "type": "function",
        "function": {
            "name": "first",
            "description": "Says it again, twice.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "what to say"}},
                "required": ["text"],
            },
        },
    }
    parameters = tools[1].spec["function"]["parameters"]
    assert {name: schema["type"] for name, schema in parameters["properties"].items()} == {
        "count": "integer",
        "ratio": "number",
        "names": "array",
        "deep": "boolean",
    }
    assert parameters["required"] == ["count"]


def test_results_become_text_and_done_ends_the_episode() -> None:
    first, second, last, _ = declared(Desk())
    assert first({"text": "a"}) == ("aa", False)
    assert second({"count": 3, "ratio": 2}) == ('{"count": 3}', False)
    assert last({}) == ('{"over": true}', True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs count"),
        ({"count": "3"}, "must be of type integer"),
        ({"count": True}, "must be of type integer"),
        ({"count": 1, "extra": 2}, "no parameter extra"),
        ({"count": 1, "names": "a"}, "must be of type array"),
    ],
)
def test_arguments_are_compared_with_the_signature(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        declared(Desk())[1](arguments)


def test_a_parameter_without_a_json_type_is_refused_by_name() -> None:
    class Wrong:
        @tool
        def look(self, where: Environment) -> str:
            return ""

    with pytest.raises(TypeError, match="annotate parameter 'where'"):
        declared(Wrong())


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        ([], ""),
        ([{"role": "user", "content": "x"}], ""),
        ([{"role": "assistant", "content": "x"}], "x"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], ""),
        ([{"role": "assistant", "content": None}], ""),
    ],
)
def test_the_answer_is_the_agents_last_message(messages: list[dict[str, object]], answer: str) -> None:
    assert Transcript(messages, [], truncated=False).answer == answer


def test_the_error_for_a_wrong_entrypoint_is_one_line(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entrypoint, message in [
        ("no_such_module:Desk", "No module named"),
        ("headway_sandbox.tools:Nothing", "no attribute 'Nothing'"),
        ("headway_sandbox.tools:Tool", "not a subclass"),
        ("headway_sandbox.environment:Environment", "abstract"),
        ("headway_sandbox.reported:Reward", "not a subclass.*; write headway_sandbox.reported:Reported"),
        ("headway_sandbox.reported:Nothing", "'Nothing'.*; write headway_sandbox.reported:ReportedReward"),
    ]:
        with pytest.raises(EnvironmentLoadError, match=message):
            load(entrypoint, {})


def test_an_environment_may_refuse_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky(Environment):
        def __init__(self, config: dict[str, object]) -> None:
            raise ValueError("colour must be red or blue")

        def reset(self, row: object, seed: int) -> Observation:
            return Observation([])

        def reward(self, transcript: Transcript) -> float:
            return 0.0

        score = reward

    monkeypatch.setattr("headway_sandbox.environment.Picky", Picky, raising=False)
    with pytest.raises(EnvironmentLoadError, match="colour must be red or blue"):
        load("headway_sandbox.environment:Picky", {"colour": "green"})
