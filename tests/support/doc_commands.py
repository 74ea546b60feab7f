"""Finds faults of the commands that pages show.

Programs of this repository parse their own arguments, and are not run. For kubectl and helm there are tables.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, get_args
from unittest import mock

import typer
from doc_blocks import ROOT, Call, calls

from headway_api import crd, names
from headway_api.conditions import ConditionType
from headway_api.document import Json
from headway_api.spec.trust import REMEDIES
from headway_api.status import State
from headway_cli.app import app

sys.path.insert(0, str(ROOT / "hack" / "images"))

from headway_images import cli as build_images

TEMPLATES = ROOT / "cli" / "headway_cli" / "templates"
HOMES = {"docs/first-environment.md": TEMPLATES / "replay", "docs/gitops.md": ROOT / "examples" / "promote"}
"""Page -> the folder in which its reader types. The page's folder and the repository's root are tried too."""
READERS = ("job.yaml", "my-values.yaml", "path/to/desk")
"""Files that the reader writes, so the repository lacks them."""
CHECKOUT = "../headway/"
"""Path from a reader's project to this repository."""
PORTS = {value for name, value in vars(names).items() if name.startswith("PORT_")}
DEMO = ROOT / "hack" / "demo" / "manifests"
"""Manifests of the demo, with Services besides those of Headway."""
BUILT_IN = ("job", "svc", "cm", "secret", "events", "nodes")
"""Kinds of Kubernetes that the pages name."""


class CommandRefusedError(Exception):
    """The command has a fault, which the message names."""


def exists(page: str, path: str) -> None:
    """Refuse a path that neither the repository nor its reader has."""
    homes = (ROOT, (ROOT / page).parent, HOMES.get(page, ROOT))
    if path not in READERS and not any((home / path).exists() for home in homes):
        raise CommandRefusedError(
            f"there is no {path}; correct it, or name it in READERS if the reader writes it"
        )


class Strict(argparse.ArgumentParser):
    """A parser that raises CommandRefusedError for a fault."""

    def error(self, message: str) -> NoReturn:
        raise CommandRefusedError(f"{self.prog}: {message}")


# headway


WRONG_USE: Any = typer.BadParameter.__base__
"""Base class of the errors for a wrong command: click's own class, or the class in typer's copy of click."""


def headway(page: str, call: Call) -> None:
    """Parse the call with the real command line, without running it."""
    command: Any = typer.main.get_command(app)
    words = [*call.words]
    while commands := getattr(command, "commands", None):
        if not words or words[0] not in commands:
            raise CommandRefusedError(f"No such command {' '.join(words[:1])!r}")
        command = commands[words.pop(0)]
    try:
        command.make_context(command.name, words)
    except WRONG_USE as error:
        raise CommandRefusedError(error.format_message()) from error
    for path in re.findall(r"(?<=--set )spec\S*(?==)", " ".join(call.words)):
        field("RLTrainingJob", path)


# kubectl


@cache
def definitions() -> dict[str, Json]:
    """Headway's CRDs, by every name that kubectl accepts."""
    found: dict[str, Json] = {}
    for each in crd.definitions():
        spelled = each["spec"]["names"]
        found |= dict.fromkeys((spelled["plural"], spelled["singular"], *spelled["shortNames"]), each)
    return found


def schema(definition: Json) -> Json:
    """The OpenAPI schema of a CRD."""
    found: Json = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def field(kind: str, path: str) -> Json:
    """The schema at a path of a kind, such as .status.budget."""
    node = schema(definitions()[kind.lower()])
    for name in path.strip(".").split("."):
        if name not in node.get("properties", {}):
            raise CommandRefusedError(f"{kind} has no field {path}")
        node = node["properties"][name]
    return node


def kind_of(resource: str) -> str:
    """The kind of `rltj` or `rltj/NAME`; empty for Kubernetes' own kinds."""
    kind, _, name = resource.partition("/")
    if kind in BUILT_IN:
        if name.startswith("NAME-") and name.removeprefix("NAME-") not in names.ROLES:
            raise CommandRefusedError(f"no role has objects called {name}")
        return ""
    if kind not in definitions():
        raise CommandRefusedError(f"there is no resource {kind}; add it to BUILT_IN if Kubernetes has it")
    return str(definitions()[kind]["spec"]["names"]["kind"])


@cache
def verbs() -> dict[str, Strict]:
    """Parsers of the verbs of kubectl that pages use. Add an option here once you have tried it."""
    found: dict[str, Strict] = {}

    def verb(name: str, *positional: str, **options: Any) -> None:
        line = found[name] = Strict(prog=f"kubectl {name}")
        line.add_argument("-n", dest="namespace")
        for each in positional:
            line.add_argument(each.rstrip("*?"), nargs=each[-1] if each[-1] in "*?" else None)
        for option, more in options.items():
            line.add_argument(("-" if len(option) == 1 else "--") + option.replace("_", "-"), **more)

    flag: Json = {"action": "store_true"}
    word: Json = {}
    needed = {"required": True}
    verb("get", "resource", "name?", A=flag, w=flag, o=word, field_selector=word)
    verb("describe", "resource", "name")
    verb("explain", "path")
    verb("logs", "resource?", l=word, tail={"type": int})
    verb("events", **{"for": needed})
    verb("port-forward", "resource", "ports*")
    verb(
        "patch", "resource", "name", type={"choices": ("merge", "json", "strategic")}, p=word, patch_file=word
    )
    verb("annotate", "resource", "name", "annotations*", overwrite=flag)
    verb("apply", f=needed)
    verb("wait", "resource", timeout=needed, **{"for": needed})
    verb("create", "resource", "form", "name", from_literal={"action": "append"})
    return found


def parsed(call: Call) -> tuple[str, Json]:
    """The verb of kubectl, and its options by name."""
    verb = next((word for word in call.words if word in verbs()), "")
    if not verb:
        raise CommandRefusedError("the pages use no such verb of kubectl: add it to verbs()")
    at = call.words.index(verb)  # options of all verbs may come before it
    words = [*call.words[:at], *call.words[at + 1 :]]
    return verb, vars(verbs()[verb].parse_intermixed_args(words))


def kubectl(page: str, call: Call) -> None:
    """Parse the call, and look up its kinds, fields, conditions, annotations and files."""
    verb, line = parsed(call)
    resource = line.get("for" if verb == "events" else "resource")
    kind = kind_of(resource) if resource else ""
    for path in re.findall(r"\{(\.[^}]+)\}", line.get("o") or "") if kind else ():
        field(kind, path)
    if verb == "explain":
        explained, _, path = line["path"].partition(".")
        field(kind_of(explained), path)
    if verb == "wait":
        ConditionType(line["for"].removeprefix("condition="))
    for each in line.get("annotations") or ():
        annotation(*each.split("="))
    if line.get("l"):
        label(*line["l"].split("="))
    for port in line.get("ports") or ():
        if int(port) not in PORTS and not served_by_the_demo(resource, port):
            raise CommandRefusedError(f"nothing of ours listens at {port}")
    for name in json.loads(line.get("p") or "{}").get("spec", ()):
        field(kind, f"spec.{name}")
    for path in (line.get("f"), line.get("patch_file")):
        if path:
            exists(page, path)


def served_by_the_demo(resource: str | None, port: str) -> bool:
    """Whether the demo has a Service of this name with this port."""
    documents = [each for file in DEMO.glob("*.yaml") for each in file.read_text().split("\n---\n")]
    return any(
        each.startswith("apiVersion: v1\nkind: Service\n")
        and f"svc/{re.findall(r'name: ([a-z]+), namespace', each)[0]}" == resource
        and f"port: {port}}}" in each
        for each in documents
    )


def annotation(key: str, value: str) -> None:
    """Refuse an annotation that nothing reads."""
    if key == names.ANNOTATION_REMEDY and value not in REMEDIES:
        raise CommandRefusedError(f"there is no remedy {value}")
    if key not in (names.ANNOTATION_REMEDY, names.ANNOTATION_RESUME):
        raise CommandRefusedError(f"nothing reads the annotation {key}")


def label(key: str, value: str) -> None:
    """Refuse a label that the chart's pods do not have."""
    helpers = "".join(path.read_text() for path in (ROOT / "charts" / "headway" / "templates").glob("*.*"))
    if not re.search(rf"{re.escape(key)}: {value}\b", helpers):
        raise CommandRefusedError(f"the chart has no label {key}={value}")


# programs of the repository, and others


def make(page: str, call: Call) -> None:
    """Check that the Makefile, or the code that a target runs, has the targets and variables."""
    text = (ROOT / "Makefile").read_text()
    demo = "".join(path.read_text() for path in (ROOT / "hack" / "demo").rglob("*.py"))
    for word in (each for each in call.words if not each.startswith("-")):
        name, equals, value = word.partition("=")
        if not equals and not re.search(rf"^{re.escape(name)}:", text, re.MULTILINE):
            raise CommandRefusedError(f"the Makefile has no target {name}")
        if equals and f"$({name})" not in text:
            raise CommandRefusedError(f"the Makefile has no variable {name}")
        if name == "IMAGE_ARGS":
            images(page, ["--all", *value.split()])
    for name in call.variables:
        if f'"{name}"' not in demo:
            raise CommandRefusedError(f"nothing in hack/demo reads {name}")


def images(page: str, words: list[str]) -> None:
    """Let hack/images/build.py parse its arguments, without building anything."""

    def folder(path: Path) -> None:
        exists(page, str(path))

    with mock.patch.multiple(build_images, Builder=mock.DEFAULT, environment_image=folder, run=mock.DEFAULT):
        try:
            status = build_images.main(words, None)
        except SystemExit as error:
            raise CommandRefusedError("hack/images/build.py does not take these arguments") from error
    if status:
        raise CommandRefusedError("hack/images/build.py refuses these arguments")


def python(page: str, call: Call) -> None:
    """Check that the module can be found, or that the script exists and has the options."""
    first, *words = call.words
    first = first.removeprefix(CHECKOUT)
    if first == "-m":
        module, *words = words
        if importlib.util.find_spec(module) is None:
            raise CommandRefusedError(f"there is no module {module}")
        if module == "pytest":
            pytest_(page, Call("pytest", tuple(words)))
        return
    exists(page, first)
    if first == "hack/images/build.py":
        images(page, words)
        return
    homes = (ROOT, (ROOT / page).parent, HOMES.get(page, ROOT))
    [script] = {home / first for home in homes if (home / first).exists()}
    for option in (word for word in words if word.startswith("--")):
        if f'"{option}"' not in script.read_text():
            raise CommandRefusedError(f"{first} has no option {option}")


def pytest_(page: str, call: Call) -> None:
    """Check that the files exist."""
    for path in call.words:
        exists(page, path)


def helm(page: str, call: Call) -> None:
    """Check the arguments of `helm install`, and that the chart and the values exist."""
    line = Strict(prog="helm")
    verb = line.add_subparsers(required=True).add_parser("install")
    for word in ("release", "chart", "-n", "-f"):
        verb.add_argument(word)
    verb.add_argument("--create-namespace", action="store_true")
    found = line.parse_args([*call.words])
    exists(page, f"{found.chart}/Chart.yaml")
    exists(page, found.f)


def inspect(page: str, call: Call) -> None:
    """Check that the task's file exists and defines the task."""
    for word in call.words:
        path, at, task = word.partition("@")
        if at:
            exists(page, path)
            if f"def {task}(" not in (ROOT / path).read_text():
                raise CommandRefusedError(f"{path} has no task {task}")


def grep(page: str, call: Call) -> None:
    """Check that each word of `grep -Ex` is a state of a job."""
    words = call.words[1].split("|") if call.words[0] == "-Ex" else []
    for word in words:
        if word not in get_args(State):
            raise CommandRefusedError(f"no job is ever {word}")


PROGRAMS: dict[str, Callable[[str, Call], None]] = {
    "headway": headway,
    "kubectl": kubectl,
    "make": make,
    "helm": helm,
    "pytest": pytest_,
    "inspect": inspect,
    "grep": grep,
    **dict.fromkeys(("python", "python3", "$(make -s print-venv)/bin/python"), python),
}
OTHERS = (
    "aws",
    "cd",
    "curl",
    "docker",
    "echo",
    "eval",
    "export",
    "git",
    "head",
    "jq",
    "pip",
    "sleep",
    "source",
)
"""Programs of others. Their arguments are not checked: a test would need a list of all their options."""


def fault(page: str, text: str) -> str:
    """The fault of a command line; empty if it has none."""
    found = list(calls(text))
    if not found:
        return "no program is called: write `$ ` before what is typed"
    for call in found:
        if call.program not in (*PROGRAMS, *OTHERS):
            return f"say in PROGRAMS or OTHERS how to check {call.program}"
        try:
            if check := PROGRAMS.get(call.program):
                check(page, call)
        except (CommandRefusedError, ValueError) as error:
            return str(error)
    return ""
