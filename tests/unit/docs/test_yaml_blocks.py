"""Every job, part of a job, price book and chart value that a page shows is accepted unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from admission import ENVIRONMENT, Server, holds, strict
from doc_blocks import ROOT, Block, Table, of
from evaluation_cases import EVALUATION
from refusal_cases import changed
from warning_cases import QUIET

from headway_api import crd
from headway_api.document import Json
from headway_api.price_file import parse
from headway_api.recipes import GUARD_RAILS
from headway_api.spec.budget import RLBudget
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.training import RLTrainingJob
from headway_api.status import RLTrainingJobStatus

MODELS = {model.__name__: model for model in (RLTrainingJob, RLEvalJob, RLBudget)}
SERVERS = {server.kind: server for server in map(Server, crd.definitions())}
BASES: dict[str, Json] = {"RLTrainingJob": QUIET, "RLEvalJob": changed(EVALUATION, {"spec.gate": None})}
"""Kind -> the job that a part of a job is merged into."""
CHART = ROOT / "charts" / "headway"
BLOCKS = of("yaml")


class Once(yaml.SafeLoader):
    """A loader that refuses a duplicate field."""


def _mapping(loader: Once, node: yaml.MappingNode) -> Json:
    found = [loader.construct_object(key) for key, _ in node.value]
    if twice := {str(key) for key in found if found.count(key) > 1}:
        raise ValueError(f"twice: {', '.join(twice)}")
    return {str(key): value for key, value in loader.construct_mapping(node, deep=True).items()}


Once.add_constructor("tag:yaml.org,2002:map", _mapping)


def read(text: str) -> Any:
    """The only document of a text."""
    return yaml.load(text, Once)  # a SafeLoader


def merged(base: Any, part: Any) -> Any:
    """`base` with the fields of a part merged into it. Lists are replaced by the part's."""
    if not isinstance(base, dict) or not isinstance(part, dict):
        return part
    return base | {name: merged(base.get(name), value) for name, value in part.items()}


# judges: each says what is wrong


def of_job(job: Json) -> Iterator[str]:
    """Errors of the models and of an API server about an object of ours."""
    try:
        MODELS[job["kind"]].model_validate(job)
    except ValueError as error:
        yield str(error)
    answer = SERVERS[job["kind"]].create(job)
    yield from (f"{'.'.join(map(str, each.at))}: {each.keyword} {each.value!r}" for each in answer.faults)
    yield from (rule.message for rule, _ in answer.broken)


def of_part(spec: Json) -> Iterator[str]:
    """Errors about fields of a job's spec, with the warnings of the chart's policy."""
    schemas = {kind: SERVERS[kind].schema["properties"]["spec"]["properties"] for kind in BASES}
    kind = next((kind for kind in BASES if spec.keys() <= schemas[kind].keys()), None)
    if kind is None:
        yield f"no job has all of {', '.join(spec)}; name in ELSEWHERE what this is a part of"
        return
    job = BASES[kind] | {"spec": merged(BASES[kind]["spec"], spec)}
    yield from of_job(job)
    if kind == "RLTrainingJob":
        seen = ENVIRONMENT.Activation({"object": SERVERS[kind].create(job).stored})
        yield from (f"Warning: {rail.message}" for rail in GUARD_RAILS if not holds(rail.cel, seen))


def of_values(values: Json) -> Iterator[str]:
    """Errors of the chart's schema about a user's values, merged over the chart's own."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    whole = merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
    yield from (error.message for error in jsonschema.Draft7Validator(schema).iter_errors(whole))


def of_book(book: Json) -> Iterator[str]:
    """Errors of a coordinator about a price book."""
    try:
        parse(yaml.safe_dump(book).encode())
    except ValueError as error:
        yield str(error)


def of_prices(entry: Json) -> Iterator[str]:
    """Errors about a part of a price book's entry."""
    yield from of_book({"name": "page", "entries": [{"since": "2026-01-01"} | entry]})


def of_candidates(candidates: list[Json]) -> Iterator[str]:
    """Errors about candidates that are added to those of a job."""
    yield from of_part({"candidates": [*EVALUATION["spec"]["candidates"][:2], *candidates]})


def of_remediations(found: list[Json]) -> Iterator[str]:
    """Errors about entries of `status.remediations`."""
    schema = crd.definitions()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    status = strict(schema["properties"]["status"]["properties"]["remediations"])
    yield from (error.message for error in jsonschema.Draft202012Validator(status).iter_errors(found))
    RLTrainingJobStatus.model_validate({"remediations": found})


ELSEWHERE: Table[Callable[[Any], Iterator[str]]] = Table(
    {
        ("docs/bill-exports.md", "costLabels:"): of_values,
        ("docs/evaluation.md", "- name: frontier"): of_candidates,
        ("docs/prices.md", "name: own-cluster"): of_book,
        ("docs/prices.md", "gpt-4o-mini"): of_prices,
        ("docs/remedies.md", "- number: 2"): of_remediations,
        ("docs/security.md", "policy:\n"): of_values,
        ("examples/promote/README.md", "- name: production"): of_candidates,
    }
)
"""Blocks that are neither a job nor fields of its `spec`."""


SHORTENED: Table[str] = Table(
    {
        ("README.md", "sop-quickstart"): "examples/sop-quickstart/job.yaml",
        ("docs/algorithms.md", "plugins"): "examples/algorithms/job.yaml",
        ("docs/failures.md", "failurePolicy"): "examples/failure-rules.yaml",
    }
)
"""Files that a page shows in part."""


def wrong(block: Block) -> list[str]:
    """What is wrong with a block."""
    found = read(block.text)
    if judge := ELSEWHERE.get(block):
        return [*judge(found)]
    if "kind" in found:
        return [*of_job(found)] if found["kind"] in MODELS else [f"what checks a {found['kind']}?"]
    return [*of_part(found["spec"] if found.keys() == {"spec"} else found)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_yaml_of_a_page_is_accepted(block: Block) -> None:
    assert wrong(block) == [], f"{block}: correct the page"


def test_each_entry_names_one_block_of_yaml() -> None:
    assert ELSEWHERE.wrong(BLOCKS) + SHORTENED.wrong(BLOCKS) == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if SHORTENED.get(block)], ids=str)
def test_a_shortened_job_agrees_with_the_whole_one(block: Block) -> None:
    path = SHORTENED.get(block)
    assert path is not None
    job = yaml.safe_load((ROOT / path).read_text())
    found = read(block.text)
    assert merged(job, found if "kind" in found else {"spec": found}) == job, f"{block} differs from {path}"


@pytest.mark.parametrize(
    ("page", "text", "says"),
    [
        ("docs/agents.md", "agent: {http: {service: {name: a, port: 80}, idleSecond: 1}}", "idleSecond"),
        ("docs/agents.md", "agent: {sandboxed: {}}", "command"),
        ("docs/agents.md", "agnet: {}", "no job has all of agnet"),
        ("docs/agents.md", "spec: {optimizer: {learningRate: 0.005}}", "Warning: spec.optimizer"),
        ("docs/agents.md", "spec: {seed: 1, seed: 2}", "twice: seed"),
        ("docs/bill-exports.md", "costLabels: team", "array"),
        (
            "docs/budget.md",
            "{apiVersion: headway.dev/v1alpha1, kind: RLBudget, metadata: {name: x}, spec: {}}",
            "default",
        ),
        ("docs/evaluation.md", "- name: frontier\n  endpoint: {url: https://a.dev}", "model"),
        ("docs/prices.md", "models: {gpt-4o-mini: {judgePrompts: '1'}}", "judgePrompts"),
        ("docs/prices.md", "name: own-cluster\nentries: []", "entries"),
        ("docs/remedies.md", "- number: 2\n  stat: Kept", "stat"),
    ],
)
def test_a_wrong_block_is_found(page: str, text: str, says: str) -> None:
    try:
        found = "\n".join(wrong(Block(page, 1, "yaml", text)))
    except ValueError as error:
        found = str(error)
    assert says in found
