"""`headway serve`: which weights it serves, that they are the right ones, and how vLLM starts and ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from finished_run import NAME, FinishedRun
from ports import free_port
from typer.testing import CliRunner, Result

from headway_api.store import FileStore
from headway_cli import serving
from headway_cli.commands.serve import serve
from headway_cli.serving import Chosen, OnDisk, wrong_files
from headway_cli.stored_run import StoredRun, opened
from headway_cli.where import LocalJob

app = typer.Typer()
app.command()(serve)
FAKE = """#!{python}
import json, os, signal, sys, time
call = {{"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}}
open({record!r}, "w").write(json.dumps(call))
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
time.sleep(60 if "--wait" in sys.argv else 0)
sys.exit(5 if "--fail" in sys.argv else 0)
"""


def shown(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def port() -> str:
    return str(free_port())


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


@pytest.fixture
def run(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> FinishedRun:
    """Adapters of rank 12 of steps 0, 2 and 4, of which step 2 validated best.

    A `vllm` on the PATH records how it was started.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    fake = programs / "vllm"
    fake.write_text(FAKE.format(python=sys.executable, record=str(tmp_path / "record.json")))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setattr("headway_cli.commands.serve.has_accelerator", lambda: True)
    model = {"base": f"file://{base}", "dtype": "float32", "contextLength": 512, "lora": {"rank": 12}}
    return FinishedRun(tmp_path / "job").job(model=model).identity(model=model).adapters()


def recorded(run: FinishedRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder.parent / "record.json").read_text())
    return found


def weights(run: FinishedRun, step: int) -> str:
    return run.layout.weights(step).removeprefix("file://")


def test_the_best_adapter_is_served_beside_its_base_model(run: FinishedRun, base: Path, port: str) -> None:
    done = shown(str(run.folder), "--port", port)
    assert done.exit_code == 0, done.output
    call = recorded(run)
    assert call["argv"] == [
        "serve", str(base), "--served-model-name", "base", "--host", "127.0.0.1", "--port", port,
        "--dtype", "float32", "--max-model-len", "512", "--enable-lora", "--max-lora-rank", "16",
        "--lora-modules", f"{NAME}={weights(run, 2)}",
    ]  # fmt: skip
    assert call["env"]["HF_HUB_OFFLINE"] == "1"
    assert f"step 2 of {NAME}: http://127.0.0.1:{port}/v1, model {NAME}" in done.stderr


def test_without_a_gpu_the_cache_is_small_and_arguments_win(
    run: FinishedRun, port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway_cli.commands.serve.has_accelerator", lambda: False)
    own = "--kv-cache-memory-bytes=7"
    done = shown(str(run.folder), "--port", port, f"--vllm-arg={own}")
    assert done.exit_code == 0, done.output
    call = recorded(run)
    assert call["argv"][-len(serving.CPU_ARGUMENTS) - 1 :] == [*serving.CPU_ARGUMENTS, own]
    assert serving.CPU_ENVIRONMENT.items() <= call["env"].items()


@pytest.mark.parametrize(("which", "step"), [("best", 2), ("latest", 4), ("0", 0)])
def test_a_checkpoint_is_chosen(run: FinishedRun, which: str, step: int) -> None:
    done = shown(str(run.folder), "--checkpoint", which, "--print")
    assert done.exit_code == 0, done.output
    assert shlex.split(done.stdout)[-1] == f"{NAME}={weights(run, step)}"
    assert not (run.folder.parent / "record.json").exists(), "nothing was started"


@pytest.mark.parametrize("which", ["3", "-1", "newest", "9" * 30])
def test_a_checkpoint_that_is_not_kept_says_which_are(run: FinishedRun, which: str) -> None:
    done = shown(str(run.folder), f"--checkpoint={which}", "--print")
    assert done.exit_code == 2
    assert "write best, latest, or a step whose weights are kept: 0, 2, 4" in done.stderr


def test_where_nothing_was_validated_the_best_is_not_known(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path).job()
    run.step(1, {"adapter_model.safetensors": b"w", "adapter_config.json": b'{"r": 8}'})
    done = shown(str(tmp_path), "--print")
    assert done.exit_code == 2
    assert "no step was validated yet, so there is no best one: write --checkpoint latest" in done.stderr


def test_a_run_without_weights_says_so(tmp_path: Path) -> None:
    FinishedRun(tmp_path).job().identity()
    done = shown(str(tmp_path), "--print")
    assert done.exit_code == 2
    assert "has no weights that can be served yet" in done.stderr


def test_weights_that_differ_from_their_record_are_not_served(run: FinishedRun) -> None:
    (Path(weights(run, 2)) / "adapter_model.safetensors").write_bytes(b"other")
    done = shown(str(run.folder))
    assert done.exit_code == 2
    assert "adapter_model.safetensors is not what the learner wrote" in done.stderr
    assert not (run.folder.parent / "record.json").exists()


def test_a_run_at_an_address_names_its_base_model(run: FinishedRun, base: Path) -> None:
    done = shown(run.uri, "--print")
    assert done.exit_code == 0, done.output
    assert shlex.split(done.stdout)[2] == str(base)


def test_a_base_model_that_the_run_does_not_name_is_asked_for(run: FinishedRun, base: Path) -> None:
    run.store.delete([f"{run.uri}/job.json"])
    done = shown(run.uri, "--print")
    assert done.exit_code == 2
    assert "write --base URI, as in spec.model.base" in done.stderr
    words = shlex.split(shown(run.uri, "--print", "--base", f"file://{base}").stdout)
    assert words[2] == str(base)
    assert "--max-model-len" not in words
    assert "spec.model: " in shown(run.uri, "--print", "--base", "ftp://x").stderr
    assert "is no longer at file:///gone" in shown(run.uri, "--print", "--base", "file:///gone").stderr


def test_an_evaluation_has_nothing_to_serve(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path).identity()
    stored = json.loads(run.store.get(f"{run.uri}/job.json"))
    run.store.put(f"{run.uri}/job.json", json.dumps({**stored, "kind": "RLEvalJob"}).encode())
    done = shown(run.uri, "--print")
    assert done.exit_code == 2
    assert "is of an RLEvalJob, which trains nothing" in done.stderr


def test_full_weights_are_a_model_of_their_own(tmp_path: Path) -> None:
    model = {"base": "hf://org/base", "full": {}}
    run = FinishedRun(tmp_path).job(model=model)
    run.step(3, {"model.safetensors": b"all", "config.json": b"{}"}, kind="full")
    run.validate(3, 1.0)
    done = shown(str(tmp_path), "--print")
    assert done.exit_code == 0, done.output
    words = shlex.split(done.stdout)
    assert words[2:5] == [weights(run, 3), "--served-model-name", NAME]
    assert "--enable-lora" not in words
    assert words[words.index("--dtype") + 1] == "bfloat16"


def test_a_delta_is_served_once_the_jobs_end_has_completed_it(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path).job(model={"base": "hf://org/base", "full": {}})
    run.step(3, {"weights.delta": b"d"}, kind="delta")
    done = shown(str(tmp_path), "--checkpoint", "3", "--print")
    assert "has no weights that can be served yet" in done.stderr
    run.store.put(f"{run.layout.weights(3)}/model.safetensors", b"all")
    done = shown(str(tmp_path), "--checkpoint", "3", "--print")
    assert done.exit_code == 2
    assert "until the job has ended, step 3 is stored as a change of an earlier step" in done.stderr
    run.store.put(f"{run.layout.weights(3)}/export.json", b"{}")
    done = shown(str(tmp_path), "--checkpoint", "3", "--print")
    assert shlex.split(done.stdout)[2] == weights(run, 3), done.output


class Bucket(FileStore):
    """Objects of a bucket, stored in a folder. It counts fetches."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fetched = folder, 0

    def _path(self, uri: str) -> Path:
        return self.folder / uri.removeprefix("s3://")

    def list(self, prefix_uri: str) -> list[str]:
        found = super().list(prefix_uri)
        return [uri.replace(f"file://{self.folder}/", "s3://") for uri in found]

    def download(self, uri: str, path: Path) -> None:
        self.fetched += 1
        super().download(uri, path)


def in_bucket(tmp_path: Path, base: str) -> tuple[StoredRun, Bucket]:
    """The run with its files in a bucket."""
    made = FinishedRun(tmp_path / "b").job(model={"base": base}).adapters()
    of = opened(LocalJob(made.folder))
    bucket = Bucket(tmp_path)
    layout = type(of.layout).of(of.layout.root.replace(f"file://{tmp_path}/", "s3://"))
    return StoredRun(bucket, layout, of.job), bucket


def test_bucket_weights_are_fetched_once_and_again_if_spoilt(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    run, bucket = in_bucket(tmp_path, f"file://{tmp_path}/base")
    chosen, cache = serving.chosen(run, "best", None), tmp_path / "cache"
    there = serving.fetched(run, chosen, cache)
    assert there.weights.is_relative_to(cache)
    assert (there.weights / "adapter_model.safetensors").read_bytes() == b"w2"
    assert (there.rank, bucket.fetched) == (12, 2)
    serving.fetched(run, chosen, cache)
    assert bucket.fetched == 2
    (there.weights / "adapter_model.safetensors").write_bytes(b"spoilt")
    serving.fetched(run, chosen, cache)
    assert bucket.fetched == 4
    assert not wrong_files(there.weights, chosen.weights.files)


def test_a_base_model_of_a_bucket_is_fetched_beside_the_weights(tmp_path: Path) -> None:
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "models" / "small" / "config.json").write_text("{}")
    run, _ = in_bucket(tmp_path, "s3://models/small")
    there = serving.fetched(run, serving.chosen(run, "latest", None), tmp_path / "cache")
    assert there.base is not None
    assert (there.base / "config.json").read_text() == "{}"


def test_other_weights_in_a_bucket_are_refused(tmp_path: Path) -> None:
    run, bucket = in_bucket(tmp_path, "s3://models/small")
    bucket.put(f"{run.layout.weights(2)}/adapter_model.safetensors", b"other")
    with pytest.raises(Exception, match="expected sha256"):
        serving.fetched(run, serving.chosen(run, "best", None), tmp_path / "cache")


@pytest.mark.parametrize(("rank", "place"), [(1, "1"), (12, "16"), (256, "256"), (300, "300")])
def test_vllm_gets_the_next_larger_rank_that_it_supports(run: FinishedRun, rank: int, place: str) -> None:
    of: Chosen = serving.chosen(opened(LocalJob(run.folder)), "best", None)
    words = serving.command(("vllm", "serve"), "m", of, OnDisk(Path("/w"), Path("/b"), rank), 1, ["--last"])
    assert words[words.index("--max-lora-rank") + 1] == place
    assert words[-1] == "--last"


def test_an_adapter_without_a_rank_is_named(run: FinishedRun) -> None:
    run.step(2, {"adapter_config.json": b"{}", "adapter_model.safetensors": b"w2"})
    done = shown(str(run.folder), "--print")
    assert done.exit_code == 2
    assert "adapter_config.json does not say the adapter's rank" in done.stderr


def test_vllm_that_fails_is_reported_with_its_exit_status(run: FinishedRun, port: str) -> None:
    done = shown(str(run.folder), "--port", port, "--vllm-arg=--fail")
    assert done.exit_code == 1
    assert "headway: vllm ended with exit status 5" in done.stderr
    assert recorded(run)["argv"][-1] == "--fail"


def test_a_port_that_is_taken_is_refused_before_anything_starts(run: FinishedRun) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = shown(str(run.folder), "--port", str(other.getsockname()[1]))
    assert done.exit_code == 2
    assert "write another port" in done.stderr
    assert not (run.folder.parent / "record.json").exists()


def test_without_vllm_the_error_says_so(
    run: FinishedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = shown(str(run.folder))
    assert done.exit_code == 2
    assert "there is no `vllm` on PATH" in done.stderr
    assert shown(str(run.folder), "--print").stdout.startswith("vllm serve ")


def started(words: Sequence[str]) -> subprocess.Popen[str]:
    program = (
        "import typer; from headway_cli.commands.serve import serve; "
        "app = typer.Typer(pretty_exceptions_enable=False); app.command()(serve); app()"
    )
    # Background jobs of a shell ignore SIGINT, and their child processes inherit that.
    words = ["env", "--default-signal=INT", sys.executable, "-c", program, *words]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_vllm_and_the_command(run: FinishedRun, port: str, number: signal.Signals) -> None:
    process = started([str(run.folder), "--port", port, "--vllm-arg=--wait"])
    record = run.folder.parent / "record.json"
    try:
        deadline = time.monotonic() + 60
        while not (record.exists() and record.read_text().endswith("}")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(ProcessLookupError):
        os.kill(recorded(run)["pid"], 0)
