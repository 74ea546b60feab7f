"""Checks that tools take the same arguments and give the same kind of answers as production's tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headway_analysis.measures.tries import TOOL_ERROR
from headway_analysis.preflight.contract import Contract, Operation, read
from headway_analysis.preflight.conversation import (
    excerpt,
    function_of,
    parameters_of,
    properties_of,
    written,
)
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript, ToolResult
from headway_analysis.preflight.sources import GUIDE
from headway_api.document import JsonView

ID: Final = "tools-like-production"
ANSWERS: Final = 8
"""The most different answers of one tool that are compared with its schema."""
FIELD: Final = "spec.environment.contract"


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on differences between the contract and the environment's tools and their answers."""
    document = baseline.facts.contract
    if document is None:
        observed = "No contract is given (spec.environment.contract), so nothing was compared."
        return Finding(ID, "Unknown", observed, threshold=0.0)
    contract = read(document)
    tools = _offered(baseline)
    if contract is None:
        observed = (
            "The contract is neither an OpenAPI 3 document (`paths`) nor a list of MCP's tools (`tools`)."
        )
        return Finding(
            ID, "Unknown", observed, threshold=0.0, advice="Correct spec.environment.contract.", field=FIELD
        )
    if not tools:
        return Finding(ID, "Unknown", "No tools were seen.", threshold=0.0, needs=1)
    found = [*_specs(contract, tools), *_answers(contract, baseline)]
    if not found:
        observed = f"{len(tools)} tools match the contract."
        return Finding(ID, "Pass", observed, 0.0, 0.0)
    named = list(dict.fromkeys(example.title for example in found))
    observed = f"{len(found)} differences to the contract: {'; '.join(named[:6])}."
    advice = "Make the environment's tools from the schemas of production."
    return Finding(
        ID,
        "Fail",
        observed,
        float(len(found)),
        0.0,
        advice=advice,
        field="spec.environment.entrypoint",
        examples=tuple(found[:MAX_EXAMPLES]),
    )


def _offered(baseline: Baseline) -> dict[str, JsonView]:
    found: dict[str, JsonView] = {}
    for one in baseline.sampled:
        for tool in one.tools:
            found.setdefault(str(function_of(tool).get("name", "")), tool)
    return found


def _specs(contract: Contract, tools: Mapping[str, JsonView]) -> Iterator[Example]:
    for name, tool in tools.items():
        operation = contract.operation(name)
        if operation is None:
            known = ", ".join(each.name for each in contract.operations[:20])
            yield Example(f"{name} is not in the contract", excerpt(f"the contract has {known}"))
            continue
        schema = parameters_of(tool)
        yield from _parameters(name, operation, schema)


def _parameters(name: str, operation: Operation, schema: JsonView) -> Iterator[Example]:
    offered = properties_of(schema)
    listed = schema.get("required")
    required = set(map(str, listed)) if isinstance(listed, list) else set()
    text = (
        f"tool: {written(schema)}\ncontract: {written(dict(operation.parameters))}, required "
        f"{sorted(operation.required)}"
    )
    for parameter in offered.keys() - operation.parameters.keys():
        yield Example(f"{name} takes {parameter}, which the contract does not have", excerpt(text))
    for parameter in operation.parameters.keys() - offered.keys():
        if parameter in operation.required:
            yield Example(f"{name} lacks {parameter}, which the contract requires", excerpt(text))
    for parameter in offered.keys() & operation.parameters.keys():
        one, other = _types(offered[parameter]), _types(operation.parameters[parameter])
        if one and other and not one <= other:
            title = (
                f"{name} takes {parameter} as {'/'.join(sorted(one))}, the contract as "
                f"{'/'.join(sorted(other))}"
            )
            yield Example(title, excerpt(text))
        if parameter in operation.required and parameter not in required:
            yield Example(f"{name} has {parameter} optional, which the contract requires", excerpt(text))


def _types(schema: Any) -> set[str]:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    listed = kind if isinstance(kind, list) else [kind]
    found = {each for each in listed if isinstance(each, str)}
    return found | {"integer"} if "number" in found else found


def _answers(contract: Contract, baseline: Baseline) -> Iterator[Example]:
    """An example with the first answer of each tool that violates the contract."""
    seen: dict[str, set[str]] = {}
    reported: set[str] = set()
    for one in baseline.sampled:
        for result in one.results:
            contents = seen.setdefault(result.name, set())
            if result.name in reported or result.content in contents or len(contents) >= ANSWERS:
                continue
            contents.add(result.content)
            objection = _objection(contract, result)
            if objection is not None:
                reported.add(result.name)
                text = f"{objection}\n{result.content}"
                yield Example(f"{result.name} answers differently", excerpt(text), one.record.episode_id)


def _objection(contract: Contract, result: ToolResult) -> str | None:
    operation = contract.operation(result.name)
    if operation is None or operation.answer is None or result.content.startswith(TOOL_ERROR):
        return None
    try:
        answer = json.loads(result.content)
    except (ValueError, RecursionError):
        answer = result.content
    return contract.objection(operation, answer)


CHECK: Final = Check(
    id=ID,
    meaning="The environment's tools differ from production's.",
    number="Number of differences between the environment's tools and spec.environment.contract. A tool or "
    "parameter may be absent from the contract, a required one absent from the tool, or a type "
    "different. Answers of the baseline's tool calls may violate the contract's schemas; up to "
    f"{ANSWERS} different answers of each tool are checked. `pattern`, `patternProperties` and "
    "`uniqueItems` are ignored.",
    threshold="Fails if any difference is found. Unknown without a contract.",
    reason="What the model learns with other tools is of no use in production.",
    source=f"{GUIDE}: tools and their request and response schemas are those of production.",
    advice="Make the environment's tools from production's schemas.",
    judge=judge,
    needs_model=False,
)
