"""`headway artifacts`: the list of what a run has written, and copies that stay inside their folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
from finished_run import FinishedRun
from typer.testing import CliRunner, Result

from headway_cli.artifact_list import Marks, aligned, contents, in_bytes, matching, text
from headway_cli.commands.artifacts import artifacts

app = typer.Typer()
app.command()(artifacts)


def shown(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    """Two training groups and a held-out one, adapters of steps 0, 2 and 4, and a checkpoint of step 4."""
    made = FinishedRun(tmp_path / "job").job().identity().prices().played().adapters()
    made.store.put(f"{made.layout.checkpoint_of(4, 1)}/state.pt", b"x" * 2048)
    made.store.put(made.layout.latest, b'{"step": 4}')
    made.store.put(made.layout.report, b"{}")
    return made


def test_a_run_is_listed_by_what_it_wrote(run: FinishedRun) -> None:
    done = shown(str(run.folder))
    assert done.exit_code == 0, done.stderr
    lines = {line.split("  ")[0]: " ".join(line.split()) for line in done.stdout.splitlines()}
    assert lines["checkpoints/000004"] == "checkpoints/000004 1 2.0 KiB training resumes here"
    assert lines["weights/000002"] == "weights/000002 2 11 B best"
    assert lines["weights/000004"] == "weights/000004 2 11 B latest"
    assert lines["trajectories/train"].split()[1] == "2"
    assert lines["trajectories/validation"].split()[1] == "1"
    assert lines["report.json"] == "report.json 1 2 B"
    assert "usage" in lines


def test_json_output_has_the_same_list(run: FinishedRun) -> None:
    found = json.loads(shown(run.uri, "--output", "json").stdout)
    assert (found["uri"], found["best"], found["latest"], found["checkpoint"]) == (run.uri, 2, 4, 4)
    assert [each["step"] for each in found["weights"]] == [0, 2, 4]
    size = sum(path.stat().st_size for path in run.place.glob("trajectories/train/*"))
    assert found["trajectories"]["train"] == {"objects": 2, "bytes": size}


def test_a_run_that_has_just_begun_has_no_best_and_no_latest(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path).identity()
    found = json.loads(shown(run.uri, "--output", "json").stdout)
    assert (found["best"], found["latest"], found["checkpoint"]) == (None, None, None)
    assert found["reports"]["job.json"]["objects"] == 1


def test_an_unservable_delta_is_not_best_or_latest(run: FinishedRun) -> None:
    run.step(6, {"weights.delta": b"d"}, kind="full")
    run.validate(6, 1.0)
    found = json.loads(shown(run.uri, "--output", "json").stdout)
    assert (found["best"], found["latest"]) == (2, 4)
    assert [each["step"] for each in found["weights"]] == [0, 2, 4, 6]


def test_a_matching_object_is_copied_under_its_key(run: FinishedRun, tmp_path: Path) -> None:
    to = tmp_path / "copies"
    done = shown(str(run.folder), "--get", "weights/000002", "--to", str(to))
    assert done.exit_code == 0, done.stderr
    assert (to / "weights/000002/adapter_model.safetensors").read_bytes() == b"w2"
    assert done.stderr == f"2 files copied to {to}\n"
    copied = sorted(str(p) for p in to.rglob("*") if p.is_file())
    assert sorted(done.stdout.splitlines()) == copied
    done = shown(str(run.folder), "--get", "weights/000002", "--to", str(to), "--output", "json")
    found = {each["key"]: each["path"] for each in map(json.loads, done.stdout.splitlines())}
    assert found == {str(Path(path).relative_to(to)): path for path in copied}


def test_a_link_out_of_the_folder_is_not_followed(run: FinishedRun, tmp_path: Path) -> None:
    to, elsewhere = tmp_path / "copies", tmp_path / "elsewhere"
    to.mkdir()
    elsewhere.mkdir()
    os.symlink(elsewhere, to / "weights")
    done = shown(str(run.folder), "--get", "weights/*", "--to", str(to))
    assert done.exit_code == 2
    assert "is not the name of a file below a folder" in done.stderr
    assert not any(elsewhere.iterdir())


def test_a_pattern_that_nothing_matches_says_what_there_is(run: FinishedRun, tmp_path: Path) -> None:
    done = shown(str(run.folder), "--get", "wieghts/*", "--to", str(tmp_path / "copies"))
    assert done.exit_code == 2
    assert "--get wieghts/*: no key matches; the top level has checkpoints, job.json" in done.stderr


@pytest.mark.parametrize("words", [["--get", "x"], ["--to", "x"]])
def test_a_pattern_and_a_folder_need_each_other(run: FinishedRun, words: list[str]) -> None:
    done = shown(str(run.folder), *words)
    assert done.exit_code == 2
    assert "write --get PATTERN and --to FOLDER together" in done.stderr


def test_a_folder_without_a_run_and_an_unknown_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    absent = str(tmp_path / "kubeconfig")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", absent)
    (tmp_path / "thesis").mkdir()
    done = shown(str(tmp_path / "thesis"))
    assert done.exit_code == 2
    assert "has no run: name the folder of a local job" in done.stderr
    (tmp_path / ".headway").mkdir()
    FinishedRun(tmp_path / ".headway" / "somebody").job()
    error = shown("nobody").stderr
    near = ".headway has no job nobody; did you mean somebody?"
    assert f"{near}; of a cluster: no cluster is configured" in error


def test_a_job_that_has_written_nothing_says_so(tmp_path: Path) -> None:
    FinishedRun(tmp_path).job()
    done = shown(str(tmp_path))
    assert done.exit_code == 2
    assert "the job has written nothing yet" in done.stderr


def test_an_unreadable_record_is_named(run: FinishedRun) -> None:
    run.store.put(run.layout.validation(2), b"torn")
    done = shown(run.uri)
    assert done.exit_code == 2
    assert "validations/000002.json cannot be read" in done.stderr
    run.store.delete([run.layout.validation(2)])
    run.store.put(run.layout.latest, b"torn")
    assert "latest.json cannot be read" in shown(run.uri).stderr


def test_a_moved_folder_is_listed_where_it_is_now(run: FinishedRun, tmp_path: Path) -> None:
    run.folder.rename(tmp_path / "moved")
    done = shown(str(tmp_path / "moved"))
    assert done.exit_code == 0, done.stderr
    assert str(tmp_path / "moved") in done.stdout


def test_stray_files_of_a_person_do_not_change_what_is_listed() -> None:
    found = contents("r", {"weights/notes.txt": 1, "weights/000001/a": 2, "odd": 3, "usage": 4})
    assert set(found.weights) == {1}
    assert found.folders["other"].objects == 3
    assert "weights/000001" in text(found, Marks())


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a/*", ["a/b", "a/c/d"]),
        ("a", ["a/b", "a/c/d"]),
        ("a/", ["a/b", "a/c/d"]),
        ("*d", ["a/c/d"]),
        ("A/*", []),
        ("e?", ["ef"]),
    ],
)
def test_a_pattern_takes_keys_and_whole_folders(pattern: str, found: list[str]) -> None:
    assert matching(["a/b", "a/c/d", "ef"], pattern) == found


@pytest.mark.parametrize(
    ("size", "shown_as"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 50, "1024.0 TiB")],
)
def test_sizes_are_short(size: int, shown_as: str) -> None:
    assert in_bytes(size) == shown_as


def test_numbers_are_aligned() -> None:
    assert aligned([("a", "1", ""), ("bcd", "200", "x")]) == ["a      1", "bcd  200  x"]
