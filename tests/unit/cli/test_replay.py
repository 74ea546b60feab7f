"""`headway replay`: what it asks of the learner, what it refuses first, and how it shows a result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import learner_rig as rig
import pytest
import written_run
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result
from written_run import Made

from headway_api import names
from headway_api.exits import Termination
from headway_api.in_force import Directive, InForce
from headway_api.job_folder import JobFolder
from headway_api.keys import Key
from headway_api.records import StepReport
from headway_api.replay import LOG, RESULT, TERMINATION, ReplayRequest, ReplayResult, TensorDifference
from headway_api.spec.training import RLTrainingJobSpec
from headway_cli import foreground, replaying
from headway_cli.app import app
from headway_cli.local.manifest import ManifestError
from headway_cli.replaying import changed_spec, report_lines, spans
from headway_cli.runs import RunNotFoundError

SAME = ReplayResult(
    step=2,
    start=1,
    trained=[2],
    processes=1,
    changed=False,
    digest="a" * 64,
    recorded_digest="a" * 64,
    file="adapter_model.safetensors",
    same=True,
    recorded={"training/loss": 0.5, "training/grad_norm": 1.0, "timing_s/step": 9.0},
    replayed={"training/loss": 0.5, "training/grad_norm": 1.0, "timing_s/step": 3.0},
    weights="/out/store/weights",
)
APART = TensorDifference(
    differing=3, total=56, max_abs=0.00213, max_at="q_proj.lora_B", first="k_proj.lora_A"
)
OTHER = SAME.model_copy(update={"same": False, "digest": "b" * 64, "difference": APART})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return written_run.write(tmp_path_factory.mktemp("run"), steps=3)


@pytest.fixture
def made_here(tmp_path: Path) -> Made:
    return written_run.write(tmp_path / "here", steps=3)


def replay(run: Path | str, *words: str) -> Result:
    return CliRunner().invoke(app, ["replay", str(run), *words])


Learner = Callable[[Path], int | None]


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> Callable[[Learner], list[ReplayRequest]]:
    """Replaces the learner by a function, and records the requests to it."""

    def stand_in(act: Learner) -> list[ReplayRequest]:
        asked: list[ReplayRequest] = []

        def run(argv: Sequence[str], env: Mapping[str, str], log: IO[bytes] | None = None) -> int | None:
            folder = Path(argv[-1])
            assert env[names.ENV_TERMINATION_FILE] == str(folder / TERMINATION)
            asked.append(ReplayRequest.read(folder))
            return act(folder)

        monkeypatch.setattr(foreground, "run", run)
        return asked

    return stand_in


def leaves(found: ReplayResult) -> Learner:
    def act(folder: Path) -> int:
        (folder / RESULT).write_text(found.model_dump_json())
        return 0

    return act


# the command


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (SAME, 0),
        (OTHER, 1),
        (OTHER.model_copy(update={"changed": True}), 0),
        (SAME.model_copy(update={"same": None, "recorded_digest": None}), 0),
    ],
    ids=["same", "other", "other-as-asked", "unknown"],
)
def test_the_exit_code_says_whether_weights_are_the_same(
    made: Made, learner: Callable[[Learner], list[ReplayRequest]], found: ReplayResult, code: int
) -> None:
    asked = learner(leaves(found))
    shown = replay(made.folder, "--step", "2")
    assert shown.exit_code == code, shown.stderr
    (request,) = asked
    assert (request.step, request.changed, request.key, request.from_start) == (2, None, None, False)
    assert request.run.uri == made.layout.root
    as_json = replay(made.folder, "--step", "2", "--output", "json")
    assert ReplayResult.model_validate_json(as_json.stdout) == found
    assert as_json.exit_code == code


def test_a_refusal_of_the_learner_keeps_its_words(
    made: Made, learner: Callable[[Learner], list[ReplayRequest]]
) -> None:
    """The learner sees the run's objects below its own folder, whose path a person does not know."""

    def act(folder: Path) -> int:
        at = f"file://{folder}/store/{made.layout.namespace}/{made.layout.name}/{made.layout.uid}"
        termination = Termination(
            reason="RecordUnreadable", message=f"{at}/steps/000002.json is not a StepReport"
        )
        (folder / TERMINATION).write_text(termination.model_dump_json())
        return 42

    learner(act)
    shown = replay(made.folder, "--step", "2")
    assert shown.exit_code == 2
    assert shown.stderr.endswith(f"headway: {made.layout.root}/steps/000002.json is not a StepReport\n")


def test_a_learner_that_died_shows_the_end_of_its_log(
    made: Made, learner: Callable[[Learner], list[ReplayRequest]]
) -> None:
    def act(folder: Path) -> int:
        (folder / LOG).write_text("x" * 9000 + "Killed")
        (folder / TERMINATION).write_text("{")
        return 137

    learner(act)
    shown = replay(made.folder, "--step", "2")
    assert shown.exit_code == 2
    assert "exit status 137" in shown.stderr
    assert shown.stderr.endswith("Killed\n")
    assert len(shown.stderr) < 3000


def test_ctrl_c_leaves_nothing_behind(made: Made, learner: Callable[[Learner], list[ReplayRequest]]) -> None:
    folders: list[Path] = []

    def act(folder: Path) -> None:
        folders.append(folder)

    learner(act)
    assert replay(made.folder, "--step", "2").exit_code == 130
    assert not folders[0].exists()


def test_a_named_folder_is_kept(
    made: Made, learner: Callable[[Learner], list[ReplayRequest]], tmp_path: Path
) -> None:
    learner(leaves(SAME))
    shown = replay(made.folder, "--step", "2", "--out", str(tmp_path / "new" / "out"))
    assert shown.exit_code == 0
    assert shown.stdout.endswith("weights: /out/store/weights\n")
    assert (tmp_path / "new/out" / RESULT).exists()
    again = replay(made.folder, "--step", "2", "--out", str(tmp_path / "new" / "out"))
    assert again.exit_code == 2
    assert "it is not empty" in again.stderr


@pytest.mark.parametrize("where", ["", "weights", "new/deep"])
def test_the_folder_of_the_run_is_refused(made_here: Made, where: str) -> None:
    shown = replay(made_here.folder, "--step", "2", "--out", str(made_here.folder / where))
    assert shown.exit_code == 2
    assert "in the run's own folder" in shown.stderr
    assert not (made_here.folder / "new").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "9"], "--step 9: step 9 is not recorded; there are 1 to 3"),
        (["--step", "0"], "--step 0: step 0 is the untrained model; there are 1 to 3"),
        (["--step", "2", "--key", "/nowhere"], "--key /nowhere: there is no such file"),
        (["--step", "2", "--loss", "nobodys"], "spec.algorithm.loss must be one of"),
        (["--step", "2", "--set", "spec.optimizer.learningRate=1"], "spec.algorithm: loss, ratio, clip"),
        (["--step", "2", "--set", "spec.algorithm.batchSize=2"], "spec.algorithm: loss, ratio, clip"),
        (["--step", "2", "--set", "spec.algorithm.lossy=2"], "spec.algorithm: loss, ratio, clip"),
        (["--step", "2", "--set", "loss=ppo"], "spec.algorithm: loss, ratio, clip"),
        (["--step", "2", "--set", "spec.algorithm=1"], "spec.algorithm: loss, ratio, clip"),
        (["--step", "2", "--set", "spec.algorithm.loss"], "write spec.FIELD=VALUE"),
        (
            ["--step", "2", "--set", "spec.algorithm.kl.lossy=1"],
            "spec.algorithm.kl.lossy: there is no such field",
        ),
    ],
)
def test_an_impossible_replay_is_refused_at_once(made: Made, words: list[str], message: str) -> None:
    shown = replay(made.folder, *words)
    assert shown.exit_code == 2, shown.output
    assert message in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_a_run_of_another_version_is_reported_as_such(made_here: Made) -> None:
    file = made_here.folder / "job.json"
    job = json.loads(file.read_text())
    job["spec"]["algorithm"] = {"temper": 1}
    file.write_text(json.dumps(job))
    shown = replay(made_here.folder, "--step", "2")
    assert shown.exit_code == 2
    assert "the version of headway that wrote it" in shown.stderr


def test_a_half_written_run_is_refused_by_its_object(made_here: Made) -> None:
    (made_here.folder / "steps" / "000002.json").write_text('{"step": 2')
    shown = replay(made_here.folder, "--step", "1")
    assert shown.exit_code == 2
    assert "steps/000002.json" in shown.stderr
    (made_here.folder / "job.json").unlink()
    assert "job.json is missing" in replay(made_here.folder, "--step", "1").stderr


@pytest.mark.parametrize(
    ("job", "message"),
    [({"kind": "RLEvalJob", "namespace": "n", "name": "e"}, "is an evaluation"), (None, "does not exist")],
)
def test_a_folder_that_is_not_a_training_run_is_refused(
    tmp_path: Path, job: dict[str, str] | None, message: str
) -> None:
    if job is not None:
        (tmp_path / "job.json").write_text(json.dumps(job))
    shown = replay(tmp_path if job else tmp_path / "absent", "--step", "1")
    assert shown.exit_code == 2
    assert message in shown.stderr


def test_a_job_without_a_step_says_so(tmp_path: Path) -> None:
    empty = written_run.write(tmp_path, steps=0)
    assert "the run has taken no step yet" in replay(empty.folder, "--step", "1").stderr


def test_the_key_of_a_local_job_is_found(
    tmp_path: Path, learner: Callable[[Learner], list[ReplayRequest]]
) -> None:
    made = written_run.write(tmp_path / "artifacts", steps=2)
    config = written_run.config(made.layout)
    identity = {"name": config.name, "namespace": config.namespace, "uid": config.uid}
    JobFolder(tmp_path).write({"kind": config.kind, "metadata": identity, "spec": config.spec.as_object()})
    key = tmp_path / "secrets" / names.keys_secret(config.stem, config.uid) / Key.CHECKPOINTS
    key.parent.mkdir(parents=True)
    key.write_text("known-to-the-learner")
    asked = learner(leaves(SAME))
    shown = replay(tmp_path, "--step", "2", "--loss", "importance_sampling")
    assert shown.exit_code == 0, shown.stderr
    assert asked[0].key == str(key)
    assert asked[0].changed is not None
    assert asked[0].changed.algorithm.loss == "importance_sampling"
    assert "known-to-the-learner" not in asked[0].model_dump_json()


# another algorithm


def changed(report: StepReport, loss: str | None, *settings: str, **algorithm: Any) -> RLTrainingJobSpec:
    config = rig.job(Path("/f"), Path("/m"), algorithm=algorithm)
    found = changed_spec(config, report, loss, settings)
    assert found is not None
    return found


def test_another_loss_drops_the_clip_bounds_of_the_old_one() -> None:
    bounds = {"clip": {"low": 0.7, "high": 1.3}}
    assert changed(rig.report(1), "cispo", **bounds).algorithm.clip is None
    kept = changed(rig.report(1), None, "spec.algorithm.kl.coefficient=0.5", **bounds).algorithm
    assert kept.clip is not None
    assert (kept.clip.high, kept.kl.coefficient) == (1.3, 0.5)
    both = changed(rig.report(1), "ppo", "spec.algorithm.clip={low: 0.5, high: 2}", **bounds).algorithm
    assert both.clip is not None
    assert both.clip.high == 2


def test_a_replay_changes_the_settings_that_were_in_force() -> None:
    """A remedy trained the step with cispo.

    So the replay changes cispo's bound, not the one of the spec's ppo.
    """
    held = rig.report(3).model_copy(update={"in_force": InForce(number=1, loss="cispo", learning_rate=1e-5)})
    found = changed(held, None, "spec.algorithm.clip.high=4", clip={"low": 0.7, "high": 1.3})
    assert (found.algorithm.loss, found.optimizer.learning_rate) == ("cispo", 1e-5)
    assert found.algorithm.clip is not None
    assert (found.algorithm.clip.low, found.algorithm.clip.high) == (None, 4)


def test_only_the_algorithm_differs() -> None:
    config = rig.job(Path("/f"), Path("/m"))
    found = changed_spec(config, rig.report(1), "importance_sampling", [])
    assert found is not None
    assert found != config.spec
    assert found.model_copy(update={"algorithm": config.spec.algorithm}) == config.spec
    assert changed_spec(config, rig.report(1), None, []) is None


def test_a_remedy_cannot_be_replayed_with_another_loss() -> None:
    report = rig.report(2).model_copy(update={"directive": Directive(remedy="RollBack")})
    with pytest.raises(ManifestError, match="step 2 is the remedy RollBack, which trains nothing"):
        changed(report, "cispo")


# what is printed


def test_a_result_is_printed_for_people() -> None:
    assert report_lines(SAME, "refunds") == [
        "refunds: step 2 trained again from the checkpoint of step 1",
        "same weights: adapter_model.safetensors aaaaaaaaaaaa",
        "",
        "                    recorded  replayed",
        "training/loss            0.5       0.5",
        "training/grad_norm         1         1",
    ]


def test_weights_that_differ_say_where_and_by_how_much() -> None:
    early = OTHER.model_copy(update={"start": None, "trained": [1, 2], "first_difference": 1, "processes": 2})
    lines = report_lines(early, "refunds")
    assert lines[:4] == [
        "refunds: steps 1 to 2 trained again from the model itself, by 2 processes",
        "step 1 is already different: later steps are not those of the run",
        "other weights: adapter_model.safetensors bbbbbbbbbbbb, recorded aaaaaaaaaaaa",
        "3 of 56 tensors differ, by 0.00213 at most (q_proj.lora_B); the first is k_proj.lora_A",
    ]
    shapes = TensorDifference(differing=1, total=56, max_abs=0, first="k_proj.lora_A")
    reshaped = report_lines(OTHER.model_copy(update={"difference": shapes}), "refunds")
    assert reshaped[2] == "1 of 56 tensors differ, in their shapes; the first is k_proj.lora_A"
    gone = report_lines(OTHER.model_copy(update={"difference": None, "changed": True}), "refunds")
    assert gone[1].startswith("other weights, by another algorithm: ")
    assert gone[2] == "the run no longer keeps the step's weights, so the difference is not known"
    unknown = report_lines(SAME.model_copy(update={"same": None, "recorded_digest": None}), "refunds")
    assert "no recorded weights are left for a comparison" in unknown[1]


def test_a_metric_that_only_one_side_has_is_shown() -> None:
    found = SAME.model_copy(
        update={"recorded": {"training/odd": 1.0, "training/even": 2.0}, "replayed": {"training/even": 2.0}}
    )
    table = report_lines(found, "refunds")[3:]
    assert [line.split() for line in table[1:]] == [["training/odd", "1", "-"]]


@given(st.sets(st.integers(1, 40)))
def test_spans_contain_every_number_once(steps: set[int]) -> None:
    found: list[int] = []
    for part in filter(None, spans(steps).split(", ")):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(steps)


def test_a_step_that_was_undone_is_not_recorded() -> None:
    with pytest.raises(RunNotFoundError, match="there are 1, 3"):
        replaying.recorded_step([rig.report(step) for step in (0, 1, 3)], 2)
