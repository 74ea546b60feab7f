"""The destinations that the preflight lets a sandbox try to reach, and how it interprets the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from faulty_servers import Scripted, broker, sandbox, serving
from job_rig import spec
from made_up_baselines import of_values

from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.evidence import Probe
from headway_coordinator.preflight import probes
from headway_coordinator.sandboxes import Broker

SERVED = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
TCP = ["169.254.169.254:80", "10.96.0.1:6443", "10.96.0.10:53", "1.1.1.1:443"]
UDP = ["10.96.0.10:53", "1.1.1.1:53"]


@pytest.fixture
def resolver(tmp_path: Path) -> Path:
    found = tmp_path / "resolv.conf"
    found.write_text("search svc\nnameserver 10.96.0.10\nnameserver 10.96.0.11\n")
    return found


def test_name_servers_are_tried_over_tcp_and_udp(resolver: Path) -> None:
    found = probes.destinations(SERVED, resolver)
    for protocol, wanted in (("TCP", TCP), ("UDP", UDP)):
        assert [f"{one.address}:{one.port}" for one in found if one.protocol == protocol] == wanted
    assert len({one.name for one in found}) == len(found)


def test_outside_a_cluster_the_other_destinations_are_tried(tmp_path: Path) -> None:
    found = [one.name for one in probes.destinations({}, tmp_path / "none")]
    assert found == ["metadata address", "internet", "DNS of the internet"]


async def probed(answer: Callable[[Any], dict[str, Any]], resolver: Path) -> tuple[list[Probe], Scripted]:
    """Probe with a sandbox that gives this answer. Returns the probes, and the scripted sandbox."""
    box = sandbox()
    box.answers = {**box.answers, "POST /probe": answer}
    async with serving(box) as served, serving(broker(served.url)) as leases, aiohttp.ClientSession() as http:
        asking = Broker(http, leases.url, "t", "me")
        found = await probes.probe(spec(), asking, "probe", probes.destinations(SERVED, resolver))
    return found, box


@pytest.mark.parametrize(("says", "tried"), [({}, TCP), ({"protocols": ["TCP", "UDP"]}, [*TCP, *UDP])])
async def test_udp_is_tried_only_by_sandboxes_that_support_it(
    says: dict[str, Any], tried: list[str], resolver: Path
) -> None:
    def answer(body: Any) -> dict[str, Any]:
        reached = [one["address"] == "1.1.1.1" for one in body["destinations"]]
        return {"reached": reached, "age": 2.0, **says}

    found, box = await probed(answer, resolver)
    assert sorted(one.address for one in found) == sorted(tried)
    assert Probe("internet", "1.1.1.1:443", reached=True, seconds_after_start=2.0) in found
    [asked] = [body for route, body in box.asked if route == "POST /probe"]
    assert {one["protocol"] for one in asked["destinations"]} == {"TCP", "UDP"}


async def test_what_a_sandbox_reached_at_its_start_is_reported(resolver: Path) -> None:
    places = [("10.96.0.1", 6443, "TCP"), ("1.1.1.1", 53, "UDP"), ("192.0.2.1", 80, "TCP")]
    keys = ("address", "port", "protocol")
    start = {
        "destinations": [dict(zip(keys, place, strict=True)) for place in places],
        "reached": [True, False, False],
        "age": 0.25,
    }
    found, _ = await probed(
        lambda body: {"reached": [False] * len(body["destinations"]), "age": 9.0, "start": start}, resolver
    )
    assert found[:3] == [
        Probe("API server", "10.96.0.1:6443", reached=True, seconds_after_start=0.25),
        Probe("DNS of the internet", "1.1.1.1:53", reached=False, seconds_after_start=0.25),
        Probe("TCP", "192.0.2.1:80", reached=False, seconds_after_start=0.25),
    ]
    assert {one.seconds_after_start for one in found[3:]} == {9.0}
    baseline = replace(of_values([[(1.0, 1.0), (0.0, 0.0)]] * 4), probes=found)
    finding = BY_ID["isolated"].judge(baseline, ())
    assert finding.verdict == "Fail"
    assert "API server (10.96.0.1:6443)" in finding.observed
    assert "answered 0.2 s after the pod's start" in finding.examples[0].text
