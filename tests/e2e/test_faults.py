"""Every fault of docs/troubleshooting.md, provoked: the job and one event name field, cause and fix.

What cannot be right is refused at `kubectl apply`, or by the preflight before any pod with an accelerator
starts. Damaged weights are the exception: only loading them shows the damage.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from provoked import PROVOKED, inputs
from provoked.rig import FaultRig, Seen

from headway_analysis.faults.catalogue import FAULTS
from headway_analysis.faults.definition import Fault, Stage
from headway_demo.settings import NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

UNCHECKED = re.compile(r"<nil>: Invalid value: (null|\"\"): some validation rules were not checked[^,\]]*")
"""What the API server adds to any error of type or size. It says nothing about the mistake itself."""
PLUMBING = re.compile(
    r"\b(GET|POST|PUT|PATCH|DELETE) (https?:)?/|Traceback|<nil>|\b[45]\d\d (Client|Server) Error|object at 0x"
    r"|Max retries exceeded|\bErrno\b|An error occurred|forbidden: |Error creating"
)
BY_NAME = {fault.name: fault for fault in FAULTS}
EVERY_TIME = (
    "no-bucket", "no-dataset", "other-format", "no-prompt-column", "no-model", "garbled-configuration",
    "no-module", "no-room-for-turns",
)  # fmt: skip
"""The faults found after apply that `make test` also provokes. It provokes all that are refused at apply."""


def marks(fault: Fault) -> tuple[pytest.MarkDecorator, ...]:
    """Marks of the test of a fault. `make test-faults` runs all; together they take a quarter of an hour."""
    if fault.name in EVERY_TIME:
        return ()
    return (pytest.mark.chaos,)


PAST_APPLY = [
    pytest.param(fault.name, marks=marks(fault)) for fault in FAULTS if fault.stage is not Stage.APPLY
]


@pytest.fixture(scope="module")
def seen(
    bench: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Seen]:
    """What was seen of each selected fault. All of them are provoked together."""
    asked = {item.callspec.params["name"] for item in request.session.items if "seen" in item.fixturenames}
    wanted = {name: (BY_NAME[name], PROVOKED[name]) for name in BY_NAME if name in asked}
    secret = bench.kube.get("secret", "objects", "-n", NAMESPACE)
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "objects"}, "data": secret["data"]}
    folder: Path = tmp_path_factory.mktemp("odd")
    with bench.platform.bucket() as bucket:
        inputs.upload(bucket, folder)
        rig = FaultRig(bench, bucket, keys, f"faults-{uuid4().hex[:6]}")
        try:
            found = rig.all(wanted)
        finally:
            rig.close()
    return found


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS if fault.stage is Stage.APPLY])
def test_apply_refuses_a_fault_with_field_and_fix(seen: dict[str, Seen], name: str) -> None:
    fault, found = BY_NAME[name], seen[name]
    assert not found.error, found.error
    assert found.status in (400, 422), found.answer
    assert fault.pattern.search(found.answer), found.answer
    assert found.exists == (PROVOKED[name].edit is not None)
    assert not PLUMBING.search(UNCHECKED.sub("", found.answer)), found.answer


@pytest.mark.parametrize("name", PAST_APPLY)
def test_state_condition_and_event_explain_a_fault(seen: dict[str, Seen], name: str) -> None:
    fault, found = BY_NAME[name], seen[name]
    assert not found.error, found.error
    known, status = found.condition(fault.condition), found.job.get("status", {})
    assert (status.get("state"), status.get("reason")) == (fault.state, fault.reason), status
    assert fault.pattern.search(known.get("message", "")), known
    events = [event for event in found.events if event["reason"] == fault.event]
    assert len(events) == 1, [(event["reason"], event["message"]) for event in found.events]
    assert events[0]["type"] == "Warning"
    assert fault.pattern.search(events[0]["message"]), events[0]["message"]
    for text in (known["message"], events[0]["message"]):
        assert not PLUMBING.search(text), text
    if fault.stage in (Stage.SPEC, Stage.PREFLIGHT):
        assert not {"learner", "rollout"} & found.roles
    assert not found.left, "pods of a job that has failed go"
    if PROVOKED[name].trains and fault.state == "Failed":
        assert any(log.endswith("/coordinator.log") for log in found.logs), found.logs
