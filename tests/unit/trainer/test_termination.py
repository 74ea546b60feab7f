"""How a learner process ends: its exit code and its logged error. It skips the interpreter's teardown."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

import pytest

from headway_api.exits import PERMANENT, RESTART, RETRIABLE, JobError
from headway_trainer import launch, learner
from headway_trainer.termination import ShutdownGuard, live

Captured = pytest.CaptureFixture[str]


class ExitedError(Exception):
    """Raised instead of ending the process with this code."""


@pytest.fixture(autouse=True)
def leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> NoReturn:
        raise ExitedError(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(learner, "exit_on_sigterm", lambda: None)


def code_of(process: Callable[[], object]) -> int:
    with pytest.raises(ExitedError) as left:
        process()
    (code,) = left.value.args
    assert isinstance(code, int)
    return code


def raising(error: BaseException) -> Callable[[object], None]:
    def run(environ: object) -> None:
        raise error

    return run


@pytest.mark.parametrize(("permanent", "code"), [(True, PERMANENT), (False, RETRIABLE)])
def test_an_explained_error_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, permanent: bool, code: int
) -> None:
    error = JobError("ModelNotLoadable", "no such file", field="spec.model.base", permanent=permanent)
    monkeypatch.setattr(learner, "run", raising(error))
    assert code_of(learner.main) == code
    assert capsys.readouterr().err == "ModelNotLoadable: spec.model.base: no such file\n"


def test_an_unexplained_error_is_logged_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(learner, "run", raising(RuntimeError("connection closed by peer")))
    assert code_of(learner.main) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("Traceback")
    assert stderr.endswith("RuntimeError: connection closed by peer\n")


def test_finished_work_ends_with_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "run", lambda environ: None)
    assert code_of(learner.main) == 0


@pytest.mark.parametrize(
    ("first", "codes", "code"),
    [
        (1, [1, RETRIABLE], RETRIABLE),
        (1, [1, PERMANENT], PERMANENT),
        (RETRIABLE, [RETRIABLE, PERMANENT], PERMANENT),
        (1, [1, RESTART], RESTART),
        (1, [1, 1], 1),
        (-9, [-9, 1], 137),
    ],
)
def test_the_process_that_explains_its_failure_sets_the_code(first: int, codes: list[int], code: int) -> None:
    assert launch.outcome(first, codes, lambda: False) == code


@pytest.mark.parametrize(
    ("first", "code"),
    [(1, RESTART), (-6, RESTART), (143, RESTART), (PERMANENT, PERMANENT), (RETRIABLE, RETRIABLE)],
    ids=["gloo", "NCCL", "stopped with the rest", "permanent", "retriable"],
)
def test_the_loss_of_a_stopped_pod_is_not_a_failure(first: int, code: int) -> None:
    """A failure with a reason of the rank's own still counts as a failure while another rank stops."""
    assert launch.outcome(first, [first, first], lambda: True) == code


def test_several_processes_end_with_one_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(launch, "several", lambda place, companions: PERMANENT)
    assert code_of(launch.main) == PERMANENT


@pytest.mark.parametrize(("asked", "code"), [(None, 0), (7, 7), ("what is wrong", 1)])
def test_an_explicit_exit_code_is_kept(capsys: Captured, asked: int | str | None, code: int) -> None:
    def work() -> None:
        raise SystemExit(asked)

    assert code_of(lambda: live(work)) == code
    assert capsys.readouterr().err == ("what is wrong\n" if code == 1 else "")


def test_sigterm_waits_for_a_holder_which_then_ends_the_process() -> None:
    hold = ShutdownGuard()
    assert not hold.defers(), "nobody holds: the process ends"
    hold.set(True)
    assert hold.defers()
    assert hold.asked
    hold.set(False)
    assert hold.defers(), "the holder has seen it, and ends by itself"
