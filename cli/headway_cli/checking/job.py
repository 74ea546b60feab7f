"""Checks whether the operator accepts a job, and whether guard rails warn about it.

Pure, except that it checks whether the model's folder exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from headway_analysis.preflight.definition import Finding, Verdict
from headway_api.document import Json
from headway_api.recipes import GUARD_RAILS, warnings
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_cli.local import engine
from headway_cli.local.manifest import KINDS
from headway_operator.plan.context import Context
from headway_operator.plan.job_kinds import job_kind_of
from headway_operator.plan.reading import SpecRefusal, parse

JOB: Final = "job"
GUARD: Final = "guard-rails"
MODEL: Final = "model"
FILE: Final = "file://"
FIELDS: Final = "docs/reference/crds.md says what each field takes."
BLOCKS: Final = ("spec", "metadata", "apiVersion", "kind")
_FIELD: Final = re.compile(r"(?:spec|metadata)(?:\.[A-Za-z0-9_.\[\]]*[A-Za-z0-9_\]]|(?=: ))")
Spec = RLTrainingJobSpec | RLEvalJobSpec


def read(document: Json) -> tuple[list[Finding], Spec | None]:
    """The findings about a job, and its spec; the spec is None if it cannot be parsed."""
    parsed = parse(KINDS[document["kind"]], document)
    if isinstance(parsed, SpecRefusal):
        return [finding(JOB, "Fail", message) for message in parsed.messages], None
    stored = {**document, "spec": document.get("spec") or {}}
    refused = job_kind_of(stored).refusals(Context(parsed, engine.platform(accelerators=False)))
    found = [finding(JOB, "Fail", message) for message in refused] or [_valid(document)]
    if isinstance(parsed.spec, RLTrainingJobSpec):
        found += [*_guarded(parsed.spec), *_model(parsed.spec.model.base)]
    return found, parsed.spec


def finding(check: str, verdict: Verdict, message: str) -> Finding:
    """Split a message into a finding's field, observation and advice.

    The message has the form `FIELD: what is wrong; what to write`, or `FIELD is VALUE: write ...`.
    """
    match = _FIELD.match(message)
    field = match[0] if match else None
    rest = message.removeprefix(f"{field}: ")
    observed, divided, fix = rest.rpartition("; ")
    if not divided:
        observed, divided, fix = rest.partition(": write ")
        fix = f"write {fix}"
    return Finding(
        check,
        verdict,
        sentence(observed if divided else rest),
        advice=sentence(fix if divided else FIELDS),
        field=field,
    )


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop. A field or a path at its start keeps its case."""
    first = text.split(" ", 1)[0].rstrip(",:;")
    begun = text[:1].upper() + text[1:] if first.isalpha() and first not in BLOCKS else text
    return begun if begun.endswith((".", "?", "!")) else f"{begun}."


def _valid(document: Json) -> Finding:
    observed = f"{document['kind']} {document['metadata']['name']} is valid, and the operator accepts it."
    if here := sorted(_on_this_machine(document.get("spec"), "spec")):
        observed += f" It runs only on this machine: a cluster refuses {FILE} in {', '.join(here)}."
    return Finding(JOB, "Pass", observed)


def _on_this_machine(value: Any, path: str) -> Iterator[str]:
    """The paths of fields below `value` that name files of this machine. `path` is the path of `value`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _on_this_machine(inner, f"{path}.{key}")
    elif isinstance(value, str) and value.startswith(FILE):
        yield path


def _guarded(spec: RLTrainingJobSpec) -> Iterator[Finding]:
    messages = warnings(spec)
    if not messages:
        yield Finding(GUARD, "Pass", f"None of {len(GUARD_RAILS)} guard rails gives a warning.")
    for message in messages:
        yield finding(GUARD, "Warn", message)


def _model(base: str) -> Iterator[Finding]:
    if not base.startswith(FILE):
        return
    folder = Path(base.removeprefix(FILE))
    if (folder / "config.json").is_file():
        yield Finding(MODEL, "Pass", f"{folder} has a model.")
        return
    advice = "Make one with `headway tiny-model`, or name another: hf://ORGANIZATION/NAME."
    yield Finding(MODEL, "Unknown", f"{folder} has no model yet.", advice=advice, field="spec.model.base")
