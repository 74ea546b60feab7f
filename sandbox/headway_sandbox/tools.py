"""Turns methods marked with `@tool` into tools with OpenAI specs, and calls them.

A parameter's annotation gives its JSON type: `str`, `int`, `float`, `bool`, `list[...]`, `dict[...]`. A
parameter with a default is optional. The first paragraph of the docstring is the tool's description; a line
`name: text` below it describes a parameter. This module reads only the function object, because `inspect`
and `typing` cost more to import than the rest of the server.
"""

from __future__ import annotations

from headway_sandbox import bounds
from headway_sandbox.awaited import awaited_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FunctionType
    from typing import Any, TypeVar

    Method = TypeVar("Method", bound=Callable[..., Any])

MARK = "__headway_tool__"
JSON_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
ACCEPTED: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class ToolError(Exception):
    """Raised by a tool to tell the agent what went wrong. The agent reads the message and may continue."""


class Done:
    """Returned by a tool to end the episode with its call."""

    __slots__ = ("content",)

    def __init__(self, content: object) -> None:
        self.content = content


class Tool:
    """A callable with the spec that the model sees."""

    __slots__ = ("function", "name", "optional", "parameters", "spec")

    def __init__(self, function: Callable[..., Any], spec: dict[str, Any]) -> None:
        self.function = function
        self.spec = spec
        """OpenAI form: `{"type": "function", "function": {...}}`."""
        described = spec["function"]
        self.name: str = described["name"]
        self.parameters: dict[str, Any] = described["parameters"]["properties"]
        self.optional = self.parameters.keys() - set(described["parameters"].get("required", ()))

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ToolError if the arguments do not match the spec."""
        unknown = sorted(arguments.keys() - self.parameters.keys())
        if unknown:
            raise ToolError(f"{self.name} has no parameter {', '.join(unknown)}")
        for name, schema in self.parameters.items():
            if name not in arguments:
                if name not in self.optional:
                    raise ToolError(f"{self.name} needs {name}")
                continue
            wanted = schema.get("type")
            value = arguments[name]
            wrong_bool = isinstance(value, bool) and wanted != "boolean"
            if wanted in ACCEPTED and (wrong_bool or not isinstance(value, ACCEPTED[wanted])):
                raise ToolError(f"{name} must be of type {wanted}")

    def __call__(self, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call the tool; returns the text for the agent, and whether the call ends the episode.

        Raises:
            ToolError: the tool refuses the call, or its arguments do not match the spec.
            InvalidReturnError: the tool returned something that is not JSON, or too much of it.
        """
        self.check(arguments)
        result = awaited_result(self.function(**arguments))
        done = isinstance(result, Done)
        content = result.content if done else result
        text = content if isinstance(content, str) else bounds.written(content, finite=False)
        if len(text) > bounds.CONTENT:
            raise bounds.InvalidReturnError(
                f"{len(text)} characters; show the agent {bounds.CONTENT} at most"
            )
        return bounds.text(text), done


def tool(method: Method) -> Method:
    """Mark a method of an environment as a tool that the model may call."""
    setattr(method, MARK, True)
    return method


def declared(environment: object) -> list[Tool]:
    """Every marked method of `environment`, in source order, base classes first."""
    names: dict[str, None] = {}
    for cls in reversed(type(environment).__mro__):
        for name, member in vars(cls).items():
            if getattr(member, MARK, False):
                names[name] = None
    return [Tool(bound, spec_of(bound.__func__)) for bound in (getattr(environment, name) for name in names)]


def spec_of(function: FunctionType) -> dict[str, Any]:
    """OpenAI spec of a method, from its signature and docstring.

    Raises:
        TypeError: a parameter has no annotation, or an annotation without a JSON type.
    """
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    parameters = code.co_varnames[1:count]
    defaults = code.co_varnames[code.co_argcount - len(function.__defaults__ or ()) : code.co_argcount]
    optional = {*defaults, *(function.__kwdefaults__ or {})}
    summary, descriptions = read_docstring(function.__doc__ or "", parameters)
    properties: dict[str, Any] = {}
    for name in parameters:
        properties[name] = {"type": json_type(function, name)}
        if name in descriptions:
            properties[name]["description"] = descriptions[name]
    required = [name for name in parameters if name not in optional]
    schema = {"type": "object", "properties": properties, "required": required}
    described: dict[str, Any] = {"name": function.__name__, "parameters": schema}
    if summary:
        described = {"name": function.__name__, "description": summary, "parameters": schema}
    return {"type": "function", "function": described}


def json_type(function: FunctionType, parameter: str) -> str:
    """JSON type of a parameter's annotation, which is a string with `from __future__ import annotations`."""
    annotation = function.__annotations__.get(parameter)
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    base = text.partition("[")[0].partition("|")[0].strip()
    if annotation is None or base not in JSON_TYPES:
        known = ", ".join(JSON_TYPES)
        raise TypeError(
            f"tool {function.__name__}: annotate parameter {parameter!r} with one of {known} (found {text})"
        )
    return JSON_TYPES[base]


def read_docstring(text: str, parameters: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """First paragraph in one line, and the text of every `parameter: text` line."""
    summary = " ".join(text.strip().partition("\n\n")[0].split())
    lines = (line.strip().partition(": ") for line in text.splitlines())
    return summary, {name: rest for name, colon, rest in lines if colon and name in parameters}
