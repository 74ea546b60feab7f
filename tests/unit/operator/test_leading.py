"""What an operator replica reports while it leads, and when it stops."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from observed_cluster import PLATFORM, job
from prometheus_client import generate_latest

from headway_operator import app
from headway_operator.cache import Cache
from headway_operator.controller import Controller
from headway_operator.telemetry import Telemetry


def test_jobs_are_shown_from_the_first_look_until_the_last_write(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry, cache = Telemetry(), Cache()
    telemetry.count_jobs(cache)
    shown = {"before": text(telemetry)}

    class Scripted:
        def start(self) -> None:
            cache.put(job(status={"state": "Training"}))

        def stop(self) -> None:
            shown["at its last write"] = text(telemetry)

    async def runs(**_: Any) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(app, "registry", lambda controller: None)
    monkeypatch.setattr(app.kopf, "operator", runs)
    app._lead(cast(Controller, Scripted()), PLATFORM, telemetry)
    shown["after"] = text(telemetry)
    of_job = {when: "headway_job_info{" in found for when, found in shown.items()}
    assert of_job == {"before": False, "at its last write": True, "after": False}
    leads = {when: "headway_operator_leader 1.0" in found for when, found in shown.items()}
    assert leads == of_job


def text(telemetry: Telemetry) -> str:
    return generate_latest(telemetry.registry).decode()
