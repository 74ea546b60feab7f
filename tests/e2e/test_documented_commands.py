"""Every kubectl command that a page shows, run on a cluster with a job that trains."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_runs import CommandRunner, Entry, run_by
from doc_shell import DocShell
from judged_job import JUDGED, Outcome

from headway_demo import quickstart
from headway_demo.settings import NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.ci, pytest.mark.timeout(900)]
NAME = "documented"
PRINTS_NOTHING = ("{.status.pause.message}",)
"""Parts of commands that print nothing for a healthy job."""
LAST = ('"suspend":true', '"suspend":false', '"finalizers":null')
"""Parts of the commands that run last, in this order. The others need a job that trains."""
ANSWER_SECONDS = 60.0
"""Seconds that a coordinator may take to notice a person's order."""


@pytest.fixture(scope="module")
def job(bench: Any) -> Iterator[str]:
    """A job with a budget that has taken its first step, and that trains for as long as the tests last."""
    changes = {
        "schedule": {"maxSteps": 100_000},
        "budget": {"usd": "100"},
        "collapse": {"policy": "Alert"},
    }
    bench.kube.apply(bench.job(NAME, changes))
    bench.wait_step(NAME, 1)
    yield NAME
    bench.delete(NAME)


def in_order(entry: Entry) -> int:
    """The sort key of a command: 0, or its position in `LAST`."""
    return next((place for place, part in enumerate(LAST, start=1) if part in entry.texts[0]), 0)


@pytest.fixture(scope="module")
def shell(
    bench: Any, job: str, judged: Outcome, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DocShell]:
    """A shell whose kubectl has the reader's namespace, in a folder with an evaluation's results."""
    folder = tmp_path_factory.mktemp("reader")
    config = yaml.safe_load(bench.kube.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = NAMESPACE
    (folder / "kubeconfig").write_text(json.dumps(config))
    for name in ("results.parquet", "report.json"):
        (folder / name).write_bytes((judged.folder / name).read_bytes())
    keys = {"AWS_ACCESS_KEY_ID": "headway", "AWS_SECRET_ACCESS_KEY": bench.platform.secret_key}
    with bench.kube.forward(NAMESPACE, "service/objects", 7070) as port:
        names = names_here(job, port)
        yield DocShell(folder, names, {"KUBECONFIG": str(folder / "kubeconfig"), **keys})


def names_here(job: str, port: int) -> dict[str, str]:
    """Pattern of the words on a page -> the words for this cluster.

    Args:
        job: the job's name.
        port: the artifact store's port on this machine.
    """
    return {
        r"(headway .*)-n team": rf"\1-n {NAMESPACE} --endpoint-url http://127.0.0.1:{port}",
        r"\bhack/": f"{Path(__file__).resolve().parents[2]}/hack/",
        r"rlev(/| )sop-quickstart": rf"rlev\1{JUDGED}",
        r"\bNAME\b|\bsop-quickstart\b|\bmy-job\b": job,
        r"-n team\b": f"-n {NAMESPACE}",
        r"secret generic \w+": f"secret generic {NAME}",
        r'"\$TOKEN"': "secret",
    }


@pytest.fixture(scope="module", autouse=True)
def mistaken(bench: Any, shell: DocShell) -> Iterator[None]:
    """The file of docs/recipes.md, with the mistake that its page shows.

    Its job is suspended, so nothing starts.
    """
    document = bench.job("refunds", {"suspend": True, "algorithm": {"clip": {"low": 0.2, "high": 1.2}}})
    (shell.folder / "job.yaml").write_text(json.dumps(document))
    yield
    bench.delete("refunds")


@pytest.fixture(scope="module", autouse=True)
def research(bench: Any) -> Iterator[None]:
    """The namespace of docs/budget.md, with the example's budget."""
    bench.kube.run("create", "namespace", "research")
    budget = yaml.safe_load((quickstart.EXAMPLE / "budget.yaml").read_text())
    budget["metadata"]["namespace"] = "research"
    bench.kube.apply(budget)
    yield
    bench.kube.run("delete", "namespace", "research", "--wait=false")


@pytest.fixture(autouse=True)
def secrets(bench: Any) -> Iterator[None]:
    """Delete the Secret that a page creates, so that the next page can create its own."""
    yield
    bench.kube.run("delete", "secret", NAME, "-n", NAMESPACE, "--ignore-not-found")


@pytest.mark.parametrize("entry", sorted(run_by(CommandRunner.JOB), key=in_order), ids=str)
def test_a_command_of_a_page_succeeds(shell: DocShell, entry: Entry) -> None:
    shown = shell.type(*entry.texts)
    ends = time.monotonic() + ANSWER_SECONDS
    while "remedyOrder" in entry.texts[0] and not shown.output and time.monotonic() < ends:
        shown = shell.type(*entry.texts)
    quiet = any(part in text for part in PRINTS_NOTHING for text in entry.texts)
    assert (shown.output + shown.errors).strip() or quiet, "it shows nothing"


def test_a_command_prints_the_warning_that_its_page_shows(bench: Any, shell: DocShell) -> None:
    [entry] = [each for each in run_by(CommandRunner.JOB) if each.block.page == "docs/recipes.md"]
    bench.delete("refunds")
    shown = shell.type(*entry.texts)
    [line] = entry.lines
    warning, _, created = line.printed.rpartition("\n")
    printed = " ".join((shown.errors + shown.output).split())
    assert " ".join(warning.split()) in printed, "a warning of another rule may stand beside it"
    assert printed.endswith(created)
