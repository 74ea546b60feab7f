"""The reference page of all kinds: `python -m headway_api.docs FILE [--check]`.

It is made from the CRDs, so it describes what the API server enforces.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway_api.crd import INT_OR_STRING, PRESERVE, Schema, definitions
from headway_api.rules import VALIDATIONS

INTRODUCTION = """\
# RLTrainingJob, RLEvalJob and RLBudget, field by field

Generated from the models by `python -m headway_api.docs docs/reference/crds.md`; do not edit.
A field in **bold** is required if its block is given. Default: the value of a field that is left
out; a block's defaults are those of its fields.
"""


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(section(crd) for crd in definitions())


def section(crd: Schema) -> str:
    """One kind."""
    names = crd["spec"]["names"]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    lines = [
        f"\n## {names['kind']}\n",
        f"{schema['description']} Short name `{names['shortNames'][0]}`, category `rl`.\n",
        f"### spec of {names['kind']}\n",
        spec["description"] + "\n",
        "| field | type | default | meaning |",
        "|---|---|---|---|",
        *(row for row in rows(spec, "")),
        f"\n### What is refused in a {names['kind']}\n",
        "Besides values out of their type or bounds:\n",
        *(f"- {message}" for message in refusals(schema)),
        f"\n### status of {names['kind']}\n",
        "| field | type | meaning |",
        "|---|---|---|",
        *(row for row in rows(status, "", defaults=False)),
        "",
    ]
    return "\n".join(lines)


def rows(block: Schema, path: str, *, defaults: bool = True) -> Iterator[str]:
    """A line for each field, depth first."""
    for name, field in block.get("properties", {}).items():
        here = f"{path}{name}"
        shown = f"**`{here}`**" if name in block.get("required", []) else f"`{here}`"
        cells = (
            [shown, type_of(field)]
            + ([default_of(field)] if defaults else [])
            + [cell(field.get("description", ""))]
        )
        yield f"| {' | '.join(cells)} |"
        yield from rows(field, f"{here}.", defaults=defaults)
        if "items" in field:
            yield from rows(field["items"], f"{here}[].", defaults=defaults)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def type_of(field: Schema) -> str:
    """Type and bounds in a few words."""
    if field.get(INT_OR_STRING):
        return "quantity"
    if "enum" in field:
        return cell(" or ".join(f"`{value}`" for value in field["enum"]))
    if field.get(PRESERVE):
        return "object, free-form"
    if field.get("type") == "array":
        return f"list of {type_of(field['items'])}{bounds(field, 'minItems', 'maxItems')}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"map to {type_of(field['additionalProperties'])}"
    if field.get("format") == "date-time":
        return "time"
    return str(field.get("type", "any")) + bounds(field, "minimum", "maximum")


def bounds(field: Schema, low: str, high: str) -> str:
    """The bounds of a number or of a list's length."""
    smallest, largest = field.get(low), field.get(high)
    if largest is None:
        return "" if smallest is None else f", from {smallest}"
    return f", up to {largest}" if smallest is None else f", {smallest} to {largest}"


def default_of(field: Schema) -> str:
    default: Any = field.get("default")
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"


def refusals(node: Schema) -> Iterator[str]:
    """Every rule's message once, except rules of immutability."""
    seen: set[str] = set()

    def visit(at: Schema) -> Iterator[str]:
        for rule in at.get(VALIDATIONS, []):
            if "oldSelf" not in rule["rule"] and rule["message"] not in seen:
                seen.add(rule["message"])
                yield rule["message"]
        for child in (*at.get("properties", {}).values(), *([at["items"]] if "items" in at else [])):
            yield from visit(child)

    yield from visit(node)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or tell whether it differs."""
    parser = argparse.ArgumentParser(prog="python -m headway_api.docs", description=main.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if a file differs from what would be generated",
    )
    options = parser.parse_args(arguments)
    text = page()
    if options.check:
        same = options.file.exists() and options.file.read_text() == text
        if not same:
            print(f"{options.file} differs from the models; run: make crds", file=sys.stderr)
        return 0 if same else 1
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
