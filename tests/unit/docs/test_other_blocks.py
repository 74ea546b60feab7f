"""Checks of messages, Dockerfiles, queries, diagrams and listings of the pages. No block is left out."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from doc_blocks import ROOT, Block, Table, blocks, blocks_of, calls, of, typed

from headway_analysis.billing import cloudevents
from headway_api import metrics, names
from headway_api.artifacts import Layout
from headway_api.config import Identity
from headway_api.document import Json
from headway_api.records import UsageClass, UsageEvent
from headway_coordinator.agents.remote import RemoteAgentHost

Check = Callable[[Block], None]


# JSON


def prompt(block: Block) -> None:
    """Equals what a coordinator posts to an agent with these values, without the older names."""
    shown = json.loads(block.text)
    data, sampling = shown["metadata"], shown["inferenceParams"]
    given = {
        "temperature": sampling["temperature"],
        "top_p": sampling["topP"],
        "max_tokens": sampling["maxTokens"],
    }
    agents: Any = SimpleNamespace(
        job_arn=data["jobArn"],
        prompt=lambda purpose, row: shown["prompt"],
        endpoint=lambda rollout: data["endpoint"],
    )
    session = SimpleNamespace(sampling=SimpleNamespace(**given))
    context: Any = SimpleNamespace(purpose=None, row=shown["instance"], session=session)
    rollout: Any = SimpleNamespace(rollout_id=data["rolloutId"])
    posted = RemoteAgentHost.document(agents, context, rollout)
    del posted["inference_params"], posted["metadata"]["job_arn"], posted["metadata"]["trajectory_id"]
    assert posted == shown


def event(block: Block) -> None:
    """Equals the exported event of that usage of that job."""
    shown = json.loads(block.text)
    *_, namespace, plural, name, uid = shown["source"].split("/")
    kind = {plural: kind for kind, plural in names.PLURALS.items()}[plural]
    data = shown["data"]
    job = Identity(name=name, namespace=namespace, uid=uid, kind=kind, labels=data["labels"])
    used = UsageEvent(
        id=shown["id"],
        usage_class=UsageClass(data["class"]),
        quantity=data["quantity"],
        at=datetime.fromisoformat(shown["time"]).timestamp(),
        role=data["role"],
        product=data["product"],
    )
    assert cloudevents.event(job, used) == shown


def policy(block: Block) -> None:
    """Allows rollout servers to read the job's files and the models, and nothing else."""

    def allowed(action: str, path: str) -> bool:
        statements = json.loads(block.text)["Statement"]
        resources = [
            each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]
            for each in statements
            if (each["Effect"], each["Action"]) == ("Allow", action)
        ]
        return any(fnmatchcase(f"arn:aws:s3:::{path}", one) for each in resources for one in each)

    [output] = [each for each in of("yaml") if each.page == block.page and "roleSecretRefs" in each.text]
    uri = re.search(r"uri: s3://(\S+)", output.text)
    assert uri is not None
    layout = Layout(uri[1], "team", "refunds", "u")
    assert allowed("s3:GetObject", layout.weights(3))
    assert allowed("s3:ListBucket", uri[1].partition("/")[0])
    assert not allowed("s3:GetObject", "runs/other/weights")
    assert not allowed("s3:PutObject", layout.weights(3))


# Dockerfile, PromQL, Mermaid


def dockerfile(block: Block) -> None:
    """Begins with an image of ours, and a shell can parse what it runs."""
    base = re.search(r"^ARG BASE=headway-(\w+)\nFROM \$\{BASE\}$", block.text, re.MULTILINE)
    assert base is not None, "begin with ARG BASE=headway-NAME, FROM ${BASE}: hack/images reads that"
    assert (ROOT / "images" / base[1] / "Dockerfile").exists()
    for line in block.text.splitlines():
        word, _, rest = line.partition(" ")
        assert word in ("ARG", "FROM", "COPY", "USER", "RUN"), line
        assert word != "COPY" or len(rest.split()) == 2
        assert word != "RUN" or [*calls(rest)]


def query(block: Block) -> None:
    """Its metrics exist, and have the labels that the query groups by."""
    families = {metrics.prometheus_name(each.name): each for each in metrics.FAMILIES if "{" not in each.name}
    for line in block.text.splitlines():
        text = line.partition("#")[0]
        used = re.findall(r"\bheadway_\w+", text)
        assert used
        labels = {label for name in used for label in families[name].labels} | {*metrics.JOB_LABELS}
        for group in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", text):
            assert {*group.split(", ")} <= labels, f"{group}: not all of them are labels of {used}"
        assert text.count("(") == text.count(")")


def diagram(block: Block) -> None:
    """Some server of ours has a route for each request in it. A flow chart has arrows between its nodes."""
    asked = re.findall(r"(?:GET|POST|DELETE|PUT) (/[\w/-]+)", block.text)
    folders = ("coordinator", "rollout", "sandbox", "trainer", "wire")
    source = "".join(path.read_text() for each in folders for path in (ROOT / each).rglob("*.py"))
    for path in asked:
        route = path.replace("/ID", r"/\{\w+\}")
        assert re.search(rf'"{route}"', source), f"no server has {path}"
    if block.text.startswith("flowchart"):
        node = r"\w+(?:\[[^\]]+\]|\[\([^)]+\)\])?"
        for line in block.text.splitlines()[1:]:
            assert re.fullmatch(rf" *{node} -->\|(?:[\w ,-]+|\"[^\"]+\")\| {node}", line), line


# listings


ARGUMENTS: Json = {"day": date(2026, 11, 3), "candidate": "<candidate>"} | dict.fromkeys(
    ("step", "start", "number"), 12
)
"""Arguments for the names of files in the store. Every other argument is the text `<name>`."""


def written() -> Iterator[str]:
    """Every path that a job may write, relative to its folder."""
    layout = Layout("s3://runs", "team", "refunds", "u")
    for name, member in inspect.getmembers(Layout):
        if isinstance(member, property):
            yield getattr(layout, name).removeprefix(layout.root).strip("/")
        elif inspect.isfunction(member) and not name.startswith("_"):
            wanted = list(inspect.signature(member).parameters)[1:]
            made = getattr(layout, name)(*(ARGUMENTS.get(each, "<name>") for each in wanted))
            yield made.removeprefix(f"{layout.root}/")


def shown_paths(block: Block) -> Iterator[str]:
    """Paths of a listing. Several paths on a line share the folder of the first one."""
    for line in block.text.splitlines()[1:]:
        found = re.match(r"  (\S+(?:, \S+)*)(?=  |$)", line)
        first, *others = found[1].split(", ") if found else [""]
        if first:
            yield first.removesuffix("...")
            folder = first.rpartition("/")[0]
            yield from (each if "/" in each else f"{folder}/{each}" for each in others)


def store(block: Block) -> None:
    """Lists every folder and file that a job writes, and no other."""

    def alike(path: str) -> str:
        path = re.sub(r"-kept|-given-up", "", path)  # the page describes these suffixes in words
        path = re.sub(r"(?<=orders/)\w+|(?<=estimates/)\w+|(?<=judgements/)[\w-]+", "<one>", path)
        return re.sub(r"[tp]0-\d+|<\w+>", "NAME", re.sub(r"\d{6}", "0", path))

    ours = {alike(path) for path in written()}
    theirs = {alike(path) for path in shown_paths(block)}
    assert len(theirs) > 30
    folders = tuple(path for path in theirs if path.endswith("/"))
    parents = {"", *(str(parent) for path in ours for parent in PurePosixPath(path).parents)}
    missing = {path for path in ours - theirs - parents if not f"{path}/".startswith(folders)}
    assert missing == set(), "add these to the page"
    unknown = {path for path in theirs if path.removesuffix("/") not in ours | parents}
    assert unknown == set(), "no job writes these"


CHECKS: Table[Check] = Table(
    {
        ("docs/agents.md", "inferenceParams"): prompt,
        ("docs/bill-exports.md", "specversion"): event,
        ("docs/concepts.md", "trajectories/train/"): store,
        ("docs/operations.md", "headway_job_step /"): query,
        ("docs/security.md", "Statement"): policy,
    }
)
BY_LANGUAGE: dict[str, Check] = {"dockerfile": dockerfile, "mermaid": diagram}
ELSEWHERE: Table[str] = Table(
    {
        (
            "docs/cli.md",
            "job        RLTrainingJob",
        ): "cli/test_screen.py::test_the_page_shows_the_screen_as_it_is",
        ("docs/mcp.md", "mcpServers"): "test_mcp_page.py::test_the_snippet_starts_the_command",
    }
)
"""Blocks that another unit test compares with the code."""
NOT_CHECKED: Table[str] = Table(
    {
        ("README.md", "RLTrainingJob, RLEvalJob"): "a picture: its arrows name no route, field or file",
        ("docs/algorithms.md", "the batch's rewards"): "a picture: the tables below it name the functions",
    }
)
"""Blocks that no test can check, each with the reason."""
IN_FILES = ("console", "yaml", "python")
"""Languages with a test file of their own beside this one, which checks all their blocks."""
OTHERS = [block for block in blocks() if block.language not in IN_FILES]


def test_every_block_has_a_fence_and_a_language() -> None:
    assert [str(each) for each in blocks() if not each.fenced] == [], "write a fence, not an indentation"
    assert [str(each) for each in blocks() if not each.language] == [], (
        "name its language; text for a picture"
    )
    assert len(blocks()) > 100


@pytest.mark.parametrize("block", OTHERS, ids=str)
def test_a_block_equals_what_the_code_says_or_is_listed(block: Block) -> None:
    check = CHECKS.get(block) or BY_LANGUAGE.get(block.language)
    if check is not None:
        check(block)
        return
    assert ELSEWHERE.get(block) or NOT_CHECKED.get(block), (
        f"{block} is checked by nothing: write it as one of {', '.join(IN_FILES)}, or add it to CHECKS; "
        "list it in NOT_CHECKED only with a reason why nothing can run it"
    )


def test_each_entry_names_one_block() -> None:
    assert [wrong for table in (CHECKS, ELSEWHERE, NOT_CHECKED) for wrong in table.wrong(OTHERS)] == []


@pytest.mark.parametrize("block", [block for block in OTHERS if ELSEWHERE.get(block)], ids=str)
def test_a_block_that_is_checked_elsewhere_has_its_test_there(block: Block) -> None:
    path, _, name = str(ELSEWHERE.get(block)).partition("::")
    assert f"def {name}(" in (ROOT / "tests" / "unit" / path).read_text()


# the reading of pages


def test_blocks_are_found_with_their_lines() -> None:
    text = "# A\n\n    c\n\n```yaml\na: 1\n```\n\n1. one\n\n   ~~~~console more\n   $ b\n   ```\n   ~~~~\n"
    assert [*blocks_of("a.md", text)] == [
        Block("a.md", 3, "", "c\n", fenced=False),
        Block("a.md", 5, "yaml", "a: 1\n"),
        Block("a.md", 11, "console", "$ b\n```\n"),
    ]


def test_commands_are_distinguished_from_what_they_print() -> None:
    block = Block("a.md", 1, "console", "z\n$ a \\\n    --b\nc\n\nd\n$ e\n")
    assert [(each.text, each.printed) for each in typed(block)] == [("", "z"), ("a --b", "c\n\nd"), ("e", "")]


def test_every_program_of_a_line_is_found() -> None:
    text = """until A=1 b "$(c -d)" | e 'f;g'; do sleep 1; done && h # i"""
    found = [(each.program, each.words, dict(each.variables)) for each in calls(text)]
    assert found == [
        ("c", ("-d",), {}),
        ("b", ("$(c -d)",), {"A": "1"}),
        ("e", ("f;g",), {}),
        ("sleep", ("1",), {}),
        ("h", (), {}),
    ]


def test_an_entry_that_names_no_block_or_two_is_a_fault() -> None:
    some = [Block("a.md", 1, "yaml", "one: two\n"), Block("a.md", 5, "yaml", "two: one\n")]
    table = Table({("a.md", "one: two"): 1, ("a.md", "two"): 2, ("b.md", "one"): 3})
    assert [fault.partition(":")[0] for fault in table.wrong(some)] == [
        "a.md has 2 blocks with 'two'",
        "b.md has 0 blocks with 'one'",
    ]
