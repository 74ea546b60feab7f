"""The operator's metrics exist, are named by the contracts, and are served."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from observed_cluster import eval_job, job
from prometheus_client import generate_latest

from headway_api.metrics import OPERATOR, prometheus_name
from headway_operator.cache import Cache
from headway_operator.telemetry import Telemetry, serve


def test_every_family_of_the_operator_is_reported_under_its_name() -> None:
    telemetry = Telemetry()
    cache = Cache()
    cache.put(job(status={"state": "Training"}))
    cache.put(eval_job(status={"state": "Evaluating"}))
    telemetry.count_jobs(cache)
    telemetry.reconciled(0.1, "success")
    telemetry.reconciled(0.1, "ApiError")
    telemetry.applied("Job", "created")
    text = generate_latest(telemetry.registry).decode()
    for family in OPERATOR:
        assert f"\n{prometheus_name(family.name)}" in text or text.startswith(prometheus_name(family.name))
    assert 'headway_operator_jobs{kind="RLTrainingJob",namespace="team",state="Training"} 1.0' in text
    assert 'headway_operator_jobs{kind="RLEvalJob",namespace="team",state="Evaluating"} 1.0' in text
    assert 'headway_operator_reconcile_errors_total{reason="ApiError"} 1.0' in text


def test_probes_say_what_is_wrong() -> None:
    wrong = "no watch has heard from the API server"
    server = serve(0, Telemetry(), lambda: wrong, lambda: "")
    base = f"http://127.0.0.1:{server.server_address[1]}"
    with urllib.request.urlopen(f"{base}/readyz", timeout=10) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{base}/healthz", timeout=10)
    assert (refused.value.code, refused.value.read().decode()) == (503, wrong)
    server.shutdown()
