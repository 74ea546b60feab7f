"""`headway report` and `headway compare`: which run they show, where the page goes, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import written_run
from tokenizers import Tokenizer, models
from typer.testing import CliRunner
from written_run import Made

from headway_cli.app import app


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return written_run.write(tmp_path_factory.mktemp("run"), steps=3)


def test_a_report_of_a_run_is_written(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(made.folder), "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith(f"{out}: 0.")
    page = out.read_text()
    assert "<title>team/refunds</title>" in page
    assert "Tokens are not shown" in page


def test_a_tokenizer_that_is_named_shows_tokens(made: Made, tmp_path: Path) -> None:
    vocabulary = {f"w{each}": each for each in range(512)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    out = tmp_path / "page.html"
    command = ["report", str(made.folder), "--out", str(out), "--tokenizer", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert '<i class="p0">' in out.read_text()


@pytest.mark.parametrize("content", [None, "{}"])
def test_an_unreadable_tokenizer_is_refused(made: Made, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    done = CliRunner().invoke(app, ["report", str(made.folder), "--tokenizer", str(tmp_path)])
    assert done.exit_code == 2
    assert f"--tokenizer: {tmp_path}/tokenizer.json cannot be read" in done.stderr


def test_a_file_that_cannot_be_written_is_named(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "absent" / "page.html"
    done = CliRunner().invoke(app, ["report", str(made.folder), "--out", str(out)])
    assert done.exit_code == 2
    assert done.stderr == f"headway: --out {out}: No such file or directory\n"


def test_a_half_written_run_names_the_object(tmp_path: Path) -> None:
    broken = written_run.write(tmp_path, steps=2)
    (broken.folder / "steps" / "000001.json").write_text('{"step": 1')
    done = CliRunner().invoke(app, ["report", str(broken.folder)])
    assert done.exit_code == 2
    assert "steps/000001.json" in done.stderr


def test_an_evaluation_that_has_not_ended_says_so(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"kind": "RLEvalJob", "namespace": "n", "name": "e"}))
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert "the evaluation has not ended" in done.stderr


def test_two_runs_are_compared(made: Made, tmp_path: Path) -> None:
    other, out = written_run.write(tmp_path, steps=3, name="slower", seed=3), tmp_path / "compare.html"
    done = CliRunner().invoke(app, ["compare", str(made.folder), str(other.folder), "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    assert "spec.seed" in out.read_text()


def test_a_run_without_steps_is_compared(made: Made, tmp_path: Path) -> None:
    other, out = written_run.write(tmp_path, steps=0, name="begun", seed=3), tmp_path / "compare.html"
    for words in ([str(made.folder), str(other.folder)], [str(other.folder), str(made.folder)]):
        done = CliRunner().invoke(app, ["compare", *words, "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert "begun" in out.read_text()


def test_json_names_the_page_that_was_written(made: Made, tmp_path: Path) -> None:
    other, out = written_run.write(tmp_path, steps=3, name="slower", seed=3), tmp_path / "page.html"
    for words in (["report", str(made.folder)], ["compare", str(made.folder), str(other.folder)]):
        done = CliRunner().invoke(app, [*words, "--out", str(out), "--output", "json"])
        assert json.loads(done.stdout) == {"path": str(out), "bytes": out.stat().st_size}
        out.unlink()


def test_one_run_cannot_be_compared(made: Made) -> None:
    done = CliRunner().invoke(app, ["compare", str(made.folder)])
    assert done.exit_code == 2
    assert done.stderr == "headway: name two to 8 runs; 1 were named\n"


def test_a_run_is_not_compared_with_itself(made: Made) -> None:
    done = CliRunner().invoke(app, ["compare", str(made.folder), f"{made.folder}/"])
    assert done.exit_code == 2
    assert "is named twice: name different runs" in done.stderr
