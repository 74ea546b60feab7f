"""A process's termination message is believed within bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api import exits
from headway_api.conditions import ConditionType, condition
from headway_api.exits import JobError, Termination


def words(**fields: Any) -> str:
    return json.dumps({"reason": "DatasetEmpty", "message": "no rows"} | fields)


def test_our_own_termination_messages_are_read_unchanged() -> None:
    written = Termination(reason="DatasetEmpty", field="spec.data.train.uri", message="no rows; add some")
    assert exits.parse(written.model_dump_json()) == written


@pytest.mark.parametrize("reason", ["", "not camel", "lower", "A" * 65, "Odd\u202e", "1st", "Ä", "A\n"])
def test_an_invalid_reason_becomes_a_fixed_one(reason: str) -> None:
    found = exits.parse(words(reason=reason))
    assert found is not None
    assert found.reason == exits.DEFAULT_REASON
    assert found.message == "no rows"


@pytest.mark.parametrize("field", ["", "x" * 300, "spec.a\n\x1b[31m", "<script>", "../../etc"])
def test_a_text_that_is_not_a_field_is_left_out(field: str) -> None:
    found = exits.parse(words(field=field))
    assert found is not None
    assert found.sentence == "no rows"


def test_a_message_is_cut_and_printable() -> None:
    found = exits.parse(words(message="\x1b[2J" + "x" * 3000))
    assert found is not None
    assert len(found.message) == exits.MESSAGE_CHARACTERS
    assert found.message.isprintable()


@pytest.mark.parametrize(
    "message",
    [
        "[" * 4000,
        '{"reason":' * 600,
        "x" * 9000,
        '"text"',
        "[]",
        "null",
        words(more=1),
        words(reason=7),
        "\ud800",
    ],
)
def test_a_foreign_termination_message_is_ignored(message: str) -> None:
    assert exits.parse(message) is None


@given(st.text(max_size=80), st.none() | st.text(max_size=80), st.text(max_size=80))
def test_no_message_of_a_pod_breaks_a_condition(reason: str, field: str | None, message: str) -> None:
    found = exits.parse(json.dumps({"reason": reason, "field": field, "message": message}))
    if found is not None:
        condition(ConditionType.FAILED, True, found.reason, found.sentence)


@pytest.mark.parametrize("message", ["x" * 10_000, "é" * 10_000, '"' * 10_000, "\x01" * 10_000])
def test_kubernetes_never_cuts_our_termination_messages(message: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    with pytest.raises(SystemExit):
        exits.leave(JobError("DatasetEmpty", message, field="spec.data"), file)
    text = file.read_text()
    assert len(text.encode()) <= exits.MAX_BYTES
    found = exits.parse(text)
    assert found is not None
    assert found.reason == "DatasetEmpty"


def test_the_module_needs_no_heavy_import() -> None:
    code = "import headway_api.exits, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
