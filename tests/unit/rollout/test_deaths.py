"""Deaths by a signal are found in output that vLLM and faulthandler really wrote, in shortened form."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway_rollout import deaths, failures
from headway_rollout.process import DEATH_LINES, KEPT_LINES, Transcript

PACKAGES = "/opt/headway/venv/lib/python3.11/site-packages"
SERVING = f"""\
(APIServer pid=952) INFO 11-23 01:46:37 [launcher.py:195] Route: /adapters, Methods: POST
Fatal Python error: Illegal instruction

Thread 0x00007f5dc66546c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "{PACKAGES}/vllm/v1/engine/core.py", line 1968 in process_output_sockets
  File "/usr/lib/python3.11/threading.py", line 995 in _bootstrap

Current thread 0x00007f3f48059300 (most recent call first):
  File "{PACKAGES}/torch/nn/modules/module.py", line 1789 in _call_impl
  File "{PACKAGES}/vllm/model_executor/models/qwen3.py", line 169 in forward
  File "{PACKAGES}/vllm/v1/worker/gpu_model_runner.py", line 4207 in execute_model
  File "{PACKAGES}/vllm/v1/engine/core.py", line 1496 in run_engine_core
  File "/usr/lib/python3.11/multiprocessing/process.py", line 108 in run
  File "<string>", line 1 in <module>

Extension modules: numpy._core._multiarray_umath, setproctitle._setproctitle (total: 208)
(APIServer pid=952) WARNING 11-23 01:46:37 [core_client.py:817] [shutdown] MPClient: engine core exited \
unexpectedly; starting cleanup
(APIServer pid=952) ERROR 11-23 01:46:37 [async_llm.py:906]   File "{PACKAGES}/vllm/v1/engine/async_llm.py", \
line 849, in output_handler
(APIServer pid=952) ERROR 11-23 01:46:37 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: \
EngineCore encountered an issue. See stack trace (above) for the root cause.
""".splitlines()
FORWARD = "forward (vllm/model_executor/models/qwen3.py:169)"

LOADING = """\
(APIServer pid=11)   File "/venv/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
(APIServer pid=11)     raise RuntimeError(
(APIServer pid=11) RuntimeError: Engine core initialization failed. See root cause above. \
Failed core proc(s): {'EngineCore': -9}
""".splitlines()

WORKER = """\
(EngineCore pid=12) ERROR 11-23 01:46:37 [multiproc_executor.py:315] Worker proc VllmWorker-1 died \
unexpectedly (exit code: -4), shutting down executor.
""".splitlines()

NATIVE = """
import ctypes, sys, threading, time
sys.path.insert(0, sys.argv[1])
threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
from engine import kernels
def run_engine_core():
    kernels.attention()
run_engine_core()
"""
KERNELS = """
import ctypes, time
def attention():
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    run = ctypes.cast(getattr(libc, "raise"), ctypes.c_void_p)
    libc.pthread_create(ctypes.byref(thread), None, run, ctypes.c_void_p(4)) or time.sleep(30)
"""


def test_a_clean_front_exit_still_names_process_signal_and_call() -> None:
    error = failures.after_ready(0, SERVING)
    assert error.termination.reason == "EngineDied"
    assert error.termination.message == (
        f"vLLM's EngineCore died of SIGILL (illegal instruction) in {FORWARD}"
    )
    assert not error.permanent


@pytest.mark.parametrize(("words", "number"), deaths.SIGNALS.items())
def test_each_signal_is_found_by_faulthandlers_message(words: str, number: signal.Signals) -> None:
    code = f"import faulthandler, os; faulthandler.enable(); os.kill(os.getpid(), {number})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert words in ended.stderr
    found = deaths.find(0, ended.stderr.splitlines())
    assert found is not None
    assert found.signal == number
    assert number.name in found.sentence


def test_a_native_threads_death_names_the_main_threads_call(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    (packages / "vllm/engine").mkdir(parents=True)
    (packages / "vllm/engine/kernels.py").write_text(KERNELS)
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-c", NATIVE, str(packages / "vllm")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == -signal.SIGILL
    assert "Current thread" not in ended.stderr
    found = deaths.find(0, ended.stderr.splitlines())
    assert found == deaths.Death("vLLM's EngineCore", signal.SIGILL, "attention (vllm/engine/kernels.py:6)")


def test_a_kill_while_loading_is_not_a_spec_error() -> None:
    error = failures.before_ready(1, LOADING)
    assert (error.termination.reason, error.termination.field, error.permanent) == (
        "EngineKilled",
        None,
        False,
    )
    assert "vLLM's EngineCore died of SIGKILL (killed)" in error.termination.message
    assert "spec.rollout.resources" in error.termination.message


def test_a_worker_has_the_name_that_vllm_gives_it() -> None:
    dump = [line.replace("run_engine_core", "worker_main") for line in SERVING]
    of_dump, of_exit, of_both = (deaths.in_output(lines) for lines in (dump, WORKER, [*dump, *WORKER]))
    assert of_dump == deaths.Death("vLLM's worker", signal.SIGILL, FORWARD)
    assert of_exit == deaths.Death("vLLM's VllmWorker-1", signal.SIGILL)
    assert of_both == deaths.Death("vLLM's VllmWorker-1", signal.SIGILL, FORWARD)


def test_a_helper_that_died_earlier_does_not_hide_the_engine() -> None:
    helper = ["Fatal Python error: Aborted", "", "Extension modules: numpy (total: 1)"]
    assert deaths.in_output([*helper, *SERVING]) == deaths.in_output(SERVING)
    alone = deaths.in_output(helper)
    assert alone is not None
    assert alone.sentence == "a process of vLLM died of SIGABRT (aborted)"


def test_an_engine_core_that_leaves_no_trace_was_killed() -> None:
    gone = [line for line in SERVING if "unexpectedly" in line]
    message = failures.after_ready(0, gone).termination.message
    assert message.startswith("vLLM's EngineCore ended without an error, like a process that gets SIGKILL")


def test_the_signal_is_found_in_another_librarys_message() -> None:
    found = deaths.find(0, ["!!!!!!! Segfault encountered !!!!!!!", '  File "<unknown>", line 0, in _start'])
    assert found == deaths.Death("a process of vLLM", signal.SIGSEGV)


def test_the_last_error_before_a_death_is_in_the_message() -> None:
    lines = ["ValueError: the cache is full", *SERVING]
    message = failures.after_ready(0, lines).termination.message
    assert message.endswith(f"in {FORWARD}; its last error: ValueError: the cache is full")


def test_an_exception_is_not_a_death_by_a_signal() -> None:
    assert (
        deaths.find(1, ["KeyError: 'x'", "(APIServer pid=1) RuntimeError: Failed core proc(s): {}"]) is None
    )


def test_death_output_is_kept_despite_later_front_process_output() -> None:
    transcript = Transcript()
    for line in (
        ["first"] * (3 * KEPT_LINES) + SERVING + ["trace of a request"] * (10 * DEATH_LINES) + ["last"]
    ):
        transcript.add(line)
    assert deaths.in_output(transcript.lines) == deaths.in_output(SERVING)
    assert transcript.lines[-1] == "last"
    assert len(transcript.lines) <= 2 * KEPT_LINES + DEATH_LINES
    for line in WORKER:
        transcript.add(line)
    assert transcript.lines[-1] == WORKER[-1]
