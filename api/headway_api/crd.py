"""The CustomResourceDefinitions, generated from the models: `python -m headway_api.crd DIR [--check]`.

A CRD is not an ordinary JSON schema. It must be structural: one type a node, no references, no alternatives.
The API server fills in a default only if its parent exists, so every block with defaults has a default
itself. A block's default contains those of all its fields: the API server checks it against the rules before
it fills in missing fields.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from headway_api import names
from headway_api.grants import RLBudgetStatus
from headway_api.rules import IMMUTABLE, VALIDATIONS
from headway_api.spec.budget import RLBudget
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.training import RLTrainingJob
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus

Schema = dict[str, Any]

DROPPED = {
    "$defs",
    "title",
    "readOnly",
    "additionalProperties",
    "anyOf",
    "const",
    "default",
    "$ref",
    "propertyNames",
    IMMUTABLE,
}
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"


def structural(node: Schema, definitions: Schema, path: str) -> Schema:
    """One node of pydantic's JSON schema in the form that the API server accepts. Messages name the field by
    `path`."""
    node = _resolved(node, definitions)
    if node.get(INT_OR_STRING):
        return node
    result = {key: value for key, value in node.items() if key not in DROPPED}
    if "const" in node:
        result["enum"] = [node["const"]]
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "properties" in node:
        result["properties"] = {
            name: structural(child, definitions, f"{path}.{name}".lstrip("."))
            for name, child in node["properties"].items()
        }
    if "items" in node:
        result["items"] = structural(node["items"], definitions, f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = structural(node["additionalProperties"], definitions, path)
    if (default := node.get("default")) is not None and default != []:
        result["default"] = _without_absent(default)
    transitions = [transition(name, node, path) for name in node.get(IMMUTABLE, [])]
    if validations := [*node.get(VALIDATIONS, []), *transitions]:
        result[VALIDATIONS] = validations
    return result


def _without_absent(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_absent(item) for key, item in value.items() if item is not None and item != []}


def _resolved(node: Schema, definitions: Schema) -> Schema:
    """Replace a reference by its target, and alternatives by the only one that is not null. Keys of the node
    itself override keys of the target."""
    while True:
        if "$ref" in node:
            target = definitions[node["$ref"].rpartition("/")[2]]
        elif "anyOf" in node and not node.get(INT_OR_STRING):
            (target,) = [choice for choice in node["anyOf"] if choice != {"type": "null"}]
        else:
            return node
        beside = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
        node = target | beside
        if both := [*target.get(VALIDATIONS, []), *beside.get(VALIDATIONS, [])]:
            node[VALIDATIONS] = both


def transition(name: str, block: Schema, path: str) -> dict[str, str]:
    """The rule that a property of `block` is not changed, added or removed."""
    default = block["properties"][name].get("default")
    always = name in block.get("required", []) or default not in (None, [])
    same = f"self.{name} == oldSelf.{name}"
    return {
        "rule": same
        if always
        else f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {same})",
        "message": f"{path}.{name} is immutable; make a new job to change it".lstrip("."),
        "fieldPath": f".{name}",
    }


def open_schema(kind: type[BaseModel], status: type[BaseModel]) -> Schema:
    """The openAPIV3Schema of a kind."""
    root = kind.model_json_schema()
    statuses = status.model_json_schema(mode="serialization")
    properties = root["properties"]
    return {
        "type": "object",
        "description": " ".join(root["description"].split()),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(properties["spec"], root["$defs"], "spec"),
            # Readers compare generations, so -1 says that no operator has seen the spec yet.
            "status": structural(statuses, statuses["$defs"], "status")
            | {"default": {"observedGeneration": -1}},
        },
        VALIDATIONS: root[VALIDATIONS],
    }


def column(name: str, path: str, kind: str = "string", priority: int = 0) -> Schema:
    """A column of `kubectl get`. A column with priority 1 is shown only with `-o wide`."""
    entry: Schema = {"name": name, "type": kind, "jsonPath": path}
    return entry | ({"priority": priority} if priority else {})


AGE = column("Age", ".metadata.creationTimestamp", "date")
REASON = column("Reason", ".status.reason", priority=1)
TRAINING_COLUMNS = [
    column("State", ".status.state"),
    column("Step", ".status.progress.step", "integer"),
    column("Reward", ".status.reward.mean"),
    column("Val", ".status.validation.externalScore"),
    column("Tokens", ".status.usage.totalTokens", "integer"),
    column("Cost", ".status.usage.cost"),
    AGE,
    REASON,
]
EVALUATION_COLUMNS = [
    column("State", ".status.state"),
    column("Candidate", ".status.headline.candidate"),
    column("Score", ".status.headline.score"),
    column("Gate", ".status.gate.result"),
    column("Rows", ".status.progress.groups", "integer"),
    column("Cost", ".status.usage.cost"),
    AGE,
    REASON,
]
BUDGET_COLUMNS = [
    *(
        column(name, f".status.limits[?(@.name=='usd')].{field}")
        for name, field in (("USD", "limit"), ("Spent", "spent"), ("Granted", "granted"), ("Left", "left"))
    ),
    column("Exhausted", ".status.conditions[?(@.type=='BudgetExhausted')].status"),
    AGE,
]
SCALE = {
    "specReplicasPath": ".spec.rollout.replicas",
    "statusReplicasPath": ".status.rolloutReplicas",
    "labelSelectorPath": ".status.rolloutSelector",
}


def definition(
    kind: str, short: tuple[str, ...], schema: Schema, columns: list[Schema], subresources: Schema
) -> Schema:
    """A CustomResourceDefinition with one version, served and stored."""
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [*short],
                "categories": ["rl"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns,
                    "subresources": {"status": {}} | subresources,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def definitions() -> list[Schema]:
    """Every CRD of the product."""
    training = open_schema(RLTrainingJob, RLTrainingJobStatus)
    evaluation = open_schema(RLEvalJob, RLEvalJobStatus)
    return [
        definition("RLTrainingJob", ("rltj",), training, TRAINING_COLUMNS, {"scale": SCALE}),
        definition("RLEvalJob", ("rlev", "rlej"), evaluation, EVALUATION_COLUMNS, {"scale": SCALE}),
        definition("RLBudget", ("rlb",), open_schema(RLBudget, RLBudgetStatus), BUDGET_COLUMNS, {}),
    ]


def files() -> dict[str, str]:
    """File name -> YAML of each CRD."""
    return {
        f"{crd['metadata']['name']}.yaml": yaml.dump(
            crd, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True
        )
        for crd in definitions()
    }


class _Plain(yaml.SafeDumper):
    """A dumper without anchors: a rule that is used twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(arguments: list[str] | None = None) -> int:
    """Write the CRDs into a folder, or tell which of its files differ."""
    parser = argparse.ArgumentParser(prog="python -m headway_api.crd", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if a file differs from what would be generated",
    )
    options = parser.parse_args(arguments)
    stale = [
        options.folder / name
        for name, text in files().items()
        if not (options.folder / name).exists() or (options.folder / name).read_text() != text
    ]
    if options.check:
        for path in stale:
            print(f"{path} differs from the models; run: make crds", file=sys.stderr)
        return 1 if stale else 0
    options.folder.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(files()[path.name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
