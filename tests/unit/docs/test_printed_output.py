"""The output that a page shows below a command is what the command prints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import jsonschema
import pytest
from admission import strict
from doc_blocks import ROOT, Block, Table, Typed, calls, of, typed
from doc_commands import definitions, field, kind_of, kubectl, parsed
from refusal_cases import SMALLEST
from typer.testing import CliRunner

from headway_analysis.signals.history import Job
from headway_analysis.signals.judges.learning import REWARD, VALID
from headway_analysis.signals.watch import Watch
from headway_api import recipes
from headway_api.replay import ReplayResult
from headway_api.signals import SignalName
from headway_api.spec.training import RLTrainingJob
from headway_cli import scaffold
from headway_cli.app import app
from headway_cli.replaying import report_lines
from headway_coordinator import signals


def of_the_status(block: Block, line: Typed) -> None:
    """The value that a jsonpath selects is JSON of its schema. `...` stands for a value that is left out."""
    [get] = [call for call in calls(line.text) if call.program == "kubectl"]
    _, options = parsed(get)
    node = field(kind_of(options["resource"]), options["o"].removeprefix("jsonpath={").removesuffix("}"))
    faults = jsonschema.Draft202012Validator(strict(node)).iter_errors(json.loads(line.printed))
    assert [error.message for error in faults if error.instance != "..."] == []


def budgets(block: Block, line: Typed) -> None:
    """The output has the columns of an RLBudget, and numbers that add up."""
    columns = definitions()["rlbudget"]["spec"]["versions"][0]["additionalPrinterColumns"]
    head, row = (text.split() for text in line.printed.splitlines())
    assert head == ["NAME", *(each["name"].upper() for each in columns)]
    usd, spent, granted, left = map(Decimal, row[1:5])
    ended = usd - granted - left
    assert spent - granted <= ended <= spent, "what ended jobs spent is a part of all that was spent"


def pause(block: Block, line: Typed) -> None:
    """The output is the message and the command of a pause, as the code writes them."""
    message, resume = line.printed.splitlines()
    [call] = calls(resume)
    kubectl(block.page, call)
    watch = Watch(Job(0.0, 1.0, 1))
    for step in range(1, 4):
        watch.step(step, {VALID: 0.0, REWARD: 0.5})
    [verdict] = [each for each in watch.verdicts() if each.signal.name == SignalName.NOTHING_TO_TRAIN]
    assert signals.message(verdict).startswith(message.removesuffix("..."))


def recipe(block: Block, line: Typed) -> None:
    """The output is the recipe of a job with the model that it names."""
    base = line.printed.split()[0]
    spec = SMALLEST["spec"] | {"model": {"base": base}}
    advice = recipes.advice(RLTrainingJob.model_validate(SMALLEST | {"spec": spec}))
    assert advice.startswith(line.printed.removesuffix(" ..."))


def warned(block: Block, line: Typed) -> None:
    """The output is a warning of the chart's policy, with its name and one of its messages."""
    head, message, _ = (text.strip() for text in line.printed.splitlines())
    template = (ROOT / "charts" / "headway" / "templates" / "guardrails.yaml").read_text()
    assert '$name := printf "%s-guard-rails"' in template
    assert re.findall(r"'([^']+)'", head) == ["headway-guard-rails"] * 2
    assert message in [rail.message for rail in recipes.GUARD_RAILS]


def replayed(block: Block, line: Typed) -> None:
    """The output is what the command prints for these metrics.

    Spaces are ignored, because column widths depend on the other rows.
    """
    first, same, _, _, *rows, _ = line.printed.splitlines()
    metrics = {name: float(value) for name, value, _ in (row.split() for row in rows)}
    file, digest = same.split()[-2:]
    shown = ReplayResult.model_validate(
        {"step": 57, "start": 55, "trained": [56, 57], "processes": 1, "changed": False, "same": True}
        | {"digest": digest, "recorded_digest": digest, "file": file, "weights": ""}
        | {"recorded": metrics, "replayed": metrics}
    )
    words = " ".join(report_lines(shown, first.partition(":")[0])).split()
    assert words == line.printed.removesuffix("...").split()


def checked(block: Block, line: Typed) -> None:
    """The output is that of the project's check after each change that the page has made so far."""
    changes = [each.text for each in of("python") if each.page == block.page]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        scaffold.write(Path("parcels"), scaffold.Template.REPLAY)
        os.chdir("parcels")
        Path("test_environment.py").unlink()  # these tests fail too, as the page says, and take seconds
        environment = Path("environment.py")
        [action] = [text.strip() for text in changes if text.startswith("ACTION =")]
        text = re.sub(r"^ACTION = .*$", action, environment.read_text(), flags=re.MULTILINE)
        [lenient] = [text for text in changes if "self.expected.values()" in text]
        text = re.sub(r"^ +return float\(parse\(.*\n", lenient, text, flags=re.MULTILINE)
        assert lenient in text
        environment.write_text(text)
        subprocess.run([sys.executable, "generate.py"], check=True, capture_output=True)
        done = CliRunner().invoke(app, ["check"])
    assert done.exit_code == 1
    found = [each for each in done.stdout.splitlines() if each.startswith("Fail")]
    shown = [each.removesuffix("...") for each in line.printed.splitlines()]
    assert all(printed.startswith(start) for printed, start in zip(found, shown, strict=True)), done.stdout


PRINTED: Table[Callable[[Block, Typed], None]] = Table(
    {
        ("docs/budget.md", "{.status.budget}"): of_the_status,
        ("docs/budget.md", "get rlbudget"): budgets,
        ("docs/estimate.md", "{.status.estimate}"): of_the_status,
        ("docs/operations.md", "{.status.pause.resume}"): pause,
        ("docs/recipes.md", "headway_api.recipes"): recipe,
        ("docs/recipes.md", "Warning: Validation failed"): warned,
        ("docs/remedies.md", "{.status.remedyOrder}"): of_the_status,
        ("docs/local.md", "same weights"): replayed,
        ("docs/first-environment.md", "scorer-mutants"): checked,
    }
)
"""The check of each block's printed output."""


def slow(block: Block) -> bool:
    """Whether the check runs the command, which takes a quarter of a minute.

    The others only compare texts.
    """
    return PRINTED.get(block) is checked


@pytest.mark.parametrize(
    ("block", "line"),
    [
        pytest.param(block, line, id=str(block), marks=[pytest.mark.ci] if slow(block) else [])
        for block in of("console")
        for line in typed(block)
        if line.printed
    ],
)
def test_the_shown_output_is_what_a_command_prints(block: Block, line: Typed) -> None:
    check = PRINTED.get(block)
    assert check is not None, f"{block}: add to PRINTED how to check what {line.text} prints"
    check(block, line)


def test_each_entry_of_printed_output_names_one_block() -> None:
    assert PRINTED.wrong(of("console")) == []
