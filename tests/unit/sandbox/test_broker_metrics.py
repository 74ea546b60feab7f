"""What a broker's `/metrics` shows before anything has happened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from headway_api.config import Identity
from headway_sandbox.broker import pods, warm
from headway_sandbox.broker.metrics import FAILURES, Metrics


@pytest.mark.parametrize("reason", FAILURES)
def test_failures_count_from_zero_before_the_first_one(reason: str) -> None:
    broker = Metrics(Identity(name="refunds", namespace="team", uid="uid", kind="RLTrainingJob"))
    series = f'headway_sandbox_failures_total{{job_name="refunds",namespace="team",reason="{reason}"}} 0.0'
    assert series in generate_latest(broker.registry).decode()


def test_the_listed_reasons_are_those_the_broker_gives() -> None:
    source = Path(warm.__file__).read_text()
    given = re.findall(r'(?:Problem\(reason=|metrics\.failed\()"(\w+)"', source)
    assert {*given, pods.ENDED} == set(FAILURES)
