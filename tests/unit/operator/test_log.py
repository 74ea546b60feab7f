"""Every line that the operator writes is one JSON object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

SETTING_UP = """
import logging, threading, warnings
import kopf
from kopf._core.actions.loggers import LocalObjectLogger
from headway_operator import app
app._set_up_log("INFO")
log = logging.getLogger("headway_operator")
"""
FAILING = """
try:
    raise ValueError("two\\nlines")
except ValueError:
    {call}
"""
OF_KOPF = """
body = kopf.Body({"kind": "RLTrainingJob", "metadata": {"name": "refunds", "namespace": "team"}})
of_kopf = LocalObjectLogger(body=body, settings=kopf.OperatorSettings())
"""


def lines(script: str, *, fails: bool = False) -> list[dict[str, Any]]:
    """The log lines of a process with the operator's log, with stderr."""
    path = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", SETTING_UP + script],
        env=os.environ | path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    assert bool(done.returncode) is fails, done.stdout
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert all({"time", "level", "event"} <= line.keys() for line in found)
    return found


def test_a_record_with_spaces_and_an_exception_is_one_line() -> None:
    (line,) = lines(FAILING.format(call='log.exception("no %s, and\\n\\"why\\"", "words here")'))
    assert (line["level"], line["event"]) == ("error", 'no words here, and\n"why"')
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: two\nlines")


def test_a_record_of_kopf_is_one_line_and_names_its_job() -> None:
    (line,) = lines(OF_KOPF + FAILING.format(call='of_kopf.exception("Handler failed. Will ignore.")'))
    assert line["event"] == "Handler failed. Will ignore."
    named = {key: line[key] for key in ("kind", "namespace", "job_name")}
    assert named == {"kind": "RLTrainingJob", "namespace": "team", "job_name": "refunds"}
    assert "ValueError" in line["exception"]
    assert lines(OF_KOPF + 'of_kopf.info("chatter"); logging.getLogger("kopf").info("chatter")') == []


def test_fatal_exceptions_and_python_warnings_are_json_lines_too() -> None:
    warned, died = lines('warnings.warn("old and tired")\nraise RuntimeError("out of luck")', fails=True)
    assert "old and tired" in warned["event"]
    assert died["event"] == "died"
    assert died["exception"].endswith("RuntimeError: out of luck")


def test_a_dying_thread_logs_one_line() -> None:
    script = """
threading.excepthook = app._end
def die(): raise RuntimeError("out of luck")
thread = threading.Thread(target=die, name="worker 1"); thread.start(); thread.join()
"""
    (line,) = lines(script, fails=True)
    assert (line["event"], line["thread"], line["level"]) == ("thread-died", "worker 1", "critical")


def test_a_configuration_that_cannot_be_used_is_one_line() -> None:
    script = 'import os; os.environ["HEADWAY_OPERATOR_CONFIG"] = "/not there"; raise SystemExit(app.main())'
    (line,) = lines(script, fails=True)
    assert (line["event"], "/not there" in line["error"]) == ("configuration-refused", True)
