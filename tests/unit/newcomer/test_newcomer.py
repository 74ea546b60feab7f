"""`make newcomer`: which blocks it follows, which changes it makes, and what it reads from output."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import yaml
from doc_blocks import ROOT, Block

from headway_cli import scaffold

sys.path.insert(0, str(ROOT / "hack" / "newcomer"))
from headway_newcomer import cli, local_cluster, outcome, plan, project
from headway_newcomer.outcome import Taken
from headway_newcomer.plan import HOW, PAGE, How, Part, Step
from headway_newcomer.shell import Shell, variables

ALL = [*Part]
PUSHED = """data/train.jsonl: 300 rows, 5 bytes, sha256 00
  is s3://headway/parcels/train.jsonl

write in the job's spec:
  data:
    train: {uri: s3://headway/parcels/train.jsonl}
    validation: {uri: s3://headway/parcels/validation.jsonl}
  model: {base: s3://headway/parcels/tiny-model}  # beside its other fields
  output: {endpointUrl: http://127.0.0.1:7070}  # beside its uri
"""


def typed(*parts: Part) -> list[str]:
    return [line.partition("  ")[0] for step in cli.chosen(parts) for line in step.lines]


def step(*lines: str) -> Step:
    return Step(Block(PAGE, 7, "console", ""), Part.PAGE, How.TYPE, lines)


# What is followed.


def test_all_single_machine_commands_are_typed_in_page_order() -> None:
    assert typed(Part.PAGE) == [
        "make venv",
        'source "$(make -s print-venv)/bin/activate"',
        "cd ..",
        "headway init parcels --template replay",
        "cd parcels",
        "python generate.py",
        "headway check",
        "headway check",
        "headway tiny-model",
        "headway run job.yaml --local",
        "headway trajectories .headway/parcels --disagree",
        "headway report .headway/parcels",
    ]


def test_a_cluster_gets_image_rows_and_job() -> None:
    programs = [" ".join(line.split()[:2]) for line in typed(Part.CLUSTER)]
    assert [each for each in programs if each.startswith(("headway ", "python3 "))] == [
        "headway image",
        "python3 ../headway/hack/images/build.py",
        "headway data",
        "headway submit",
    ]


def test_the_first_command_of_the_readme_is_typed() -> None:
    [line] = typed(Part.TRY)
    assert line.split()[:2] == ["make", "try"]


def test_changes_are_made_before_the_commands_that_need_them() -> None:
    hows = [each.how for each in cli.chosen([Part.PAGE]) if each.how is not How.READ]
    assert hows.count(How.CHANGE) == 2
    assert hows[hows.index(How.FAIL) - 1] is How.CHANGE


def test_each_exception_names_one_block() -> None:
    assert HOW.wrong() == []


def test_an_unknown_block_is_refused() -> None:
    odd = Block(PAGE, 3, "python", "x = 1")
    with pytest.raises(plan.UnknownBlockError, match=r"first-environment.md:3: add to HOW"):
        list(plan.steps([odd], plan.CLUSTER, []))


# What is changed.


@pytest.fixture
def home(tmp_path: Path) -> Path:
    scaffold.write(tmp_path / "parcels", scaffold.Template.REPLAY)
    return tmp_path / "parcels"


def test_the_pages_changes_fit_the_template(home: Path) -> None:
    source = (home / "environment.py").read_text()
    for each in cli.chosen([Part.PAGE]):
        if each.how is How.CHANGE:
            made = project.changed(source, each.block.text)
            assert made != source
            assert each.block.text.strip() in made
            compile(made, "environment.py", "exec")


def test_a_change_of_missing_text_is_refused() -> None:
    with pytest.raises(project.LinesNotFoundError, match="no line ACTION ="):
        project.changed("x = 1\n", "ACTION = {}\n")
    with pytest.raises(project.LinesNotFoundError, match="no method score"):
        project.changed("x = 1\n", "        return 1.0\n")


def test_the_job_gets_what_the_page_and_the_commands_say(home: Path) -> None:
    [block] = [each.block.text for each in cli.chosen(ALL) if each.how is How.WRITE]
    before = yaml.safe_load((home / "job.yaml").read_text())
    printed = f"one\n{PUSHED}another\n"
    spec = yaml.safe_load(project.filled((home / "job.yaml").read_text(), block, printed))["spec"]
    assert spec["output"] == yaml.safe_load(block)["output"]
    assert spec["model"] == before["spec"]["model"] | {"base": "s3://headway/parcels/tiny-model"}
    assert spec["data"]["validation"] == {"uri": "s3://headway/parcels/validation.jsonl"}
    assert spec["environment"] == before["spec"]["environment"]
    assert spec["algorithm"] == before["spec"]["algorithm"]
    assert "file://" not in yaml.safe_dump(spec)
    with pytest.raises(project.LinesNotFoundError, match="no command has printed"):
        project.filled((home / "job.yaml").read_text(), block, "one\n")


def test_only_the_registry_of_a_page_is_replaced() -> None:
    line = "headway image . --base registry.example.com/headway/sandbox:1"
    assert local_cluster.here(line) == "headway image . --base localhost:5055/headway/sandbox:1"


# What is typed, in a real shell.


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "home").mkdir()
    return Shell(
        tmp_path, tmp_path / "state", variables({"UV_OFFLINE": "1", "SECRET": "x"}, tmp_path / "home")
    )


def test_folder_and_variables_last_from_block_to_block(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "set.sh").write_text('PATH="/found:$PATH"\nexport PATH\n')
    assert (
        shell.type(["mkdir made", "source set.sh  # a comment", "cd made", "export WORD='two  words'"]).code
        == 0
    )
    lines = shell.type(["pwd", 'echo "$WORD"', 'echo "$PATH"']).printed.splitlines()
    assert lines[:2] == [str(tmp_path / "made"), "two  words"]
    assert lines[2].startswith("/found:/usr/local/sbin:")
    assert shell.folder == tmp_path / "made"


def test_a_new_user_has_a_home_and_a_path_of_their_own(shell: Shell, tmp_path: Path) -> None:
    lines = shell.type(["echo $HOME", 'echo "$UV_OFFLINE/$SECRET/$PYTHONPATH"']).printed.splitlines()
    assert lines == [str(tmp_path / "home"), "1//"]


def test_nothing_is_typed_after_a_line_that_fails(shell: Shell) -> None:
    done = shell.type(["echo one", "sh -c 'exit 7'", "echo two"])
    assert (done.code, done.printed) == (7, "one\n")


def test_background_processes_end_with_the_shell(shell: Shell, tmp_path: Path) -> None:
    with shell:
        done = shell.type(["sleep 60 > sleep.log 2>&1 &", "echo $!"])
        [pid] = done.printed.split()
        assert done.seconds < 30
        assert "sleep" in Path(f"/proc/{pid}/cmdline").read_text()
    status = Path(f"/proc/{pid}/stat")
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.02)
    pytest.fail("it runs on")


# What a run printed.

RUN = """    12 s  state Preflight  step 0/20  reward -  held-out -  tokens 0  cost 0 USD
    40 s  state Training  step 0/20  reward -  held-out 0.41 ± 0.12 (step 0)  tokens 9  cost 0 USD
    90 s  state Training  step 7/20  reward 0.5  held-out 0.62 ± 0.10 (step 5)  tokens 9  cost 0 USD
   200 s  state Complete  step 20/20  reward 0.9  held-out 98% (step 20)  tokens 9  cost 0 USD
"""


def test_held_out_success_is_read_off_the_lines_of_a_job() -> None:
    assert outcome.held_out(RUN) == {0: 0.41, 5: 0.62, 20: 0.98}
    assert outcome.rise(RUN) == (0.41, 0.98)
    assert outcome.rise("before 41.0%   after 98.4%") == pytest.approx((0.41, 0.984))
    assert outcome.rise("nothing of that kind") is None


def test_a_job_that_does_not_get_better_is_a_fault() -> None:
    run = step("headway run job.yaml --local")
    assert list(outcome.faults([Taken(run, 1.0, RUN), Taken(step("headway check"), 1.0, "")])) == []
    worse = RUN.replace("98%", "41%")
    assert list(outcome.faults([Taken(run, 1.0, worse)])) == [
        f"{PAGE}:7: held-out success went from 0.41 to 0.41"
    ]
    assert list(outcome.faults([Taken(run, 1.0, "")])) == [
        f"{PAGE}:7: it printed no held-out success of two steps"
    ]


def test_an_unsuccessful_tiny_model_is_made_again_as_it_advises() -> None:
    output = (
        "spec.model.base: file:///a\nwarning: it never succeeded: write --seconds 300, or take a larger one\n"
    )
    assert outcome.advice(output) == "headway tiny-model --seconds 300"
    assert outcome.advice("success on other training rows: greedy 6 of 16, sampled 2 of 8\n") is None
    printed_by = (ROOT / "cli" / "headway_cli" / "commands" / "tiny_model.py").read_text()
    assert '"it never succeeded: write --seconds 300, ' in printed_by


def test_the_table_has_each_block_its_seconds_and_the_sum() -> None:
    taken = [
        Taken(step("make venv   # once", "cd .."), 2.0, ""),
        Taken(step("headway run job.yaml --local"), 100.5, RUN),
    ]
    assert outcome.table(taken).splitlines() == [
        f"{'block':<{len(PAGE) + 2}}   seconds  typed",
        f"{PAGE}:7       2.0  make venv; cd ..",
        f"{PAGE}:7     100.5  headway run job.yaml --local",
        f"{'':<{len(PAGE) + 2}}            held-out success 0.41 -> 0.98",
        f"{'in all':<{len(PAGE) + 2}}     102.5",
    ]


@pytest.mark.parametrize("arguments", [["cluster"], ["page", "cluster"], ["pages"]])
def test_parts_that_cannot_run_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments, None)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
