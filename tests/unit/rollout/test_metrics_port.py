"""The metrics port shows scrapers vLLM's metrics, and lets them reach nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from headway_rollout import metrics_port
from headway_rollout.engine import Engine

TEXT = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3.0\n'
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Vllm:
    """A scripted vLLM that records requests.

    It answers /metrics by script, and anything else with success.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.text = TEXT
        self.status = 200
        self.at_once = 0
        self.max_at_once = 0
        self.silent = False

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path_qs, request.headers.get("X-Of-The-Scraper", "")))
        self.at_once += 1
        self.max_at_once = max(self.max_at_once, self.at_once)
        try:
            await asyncio.sleep(60 if self.silent else 0.01)
        finally:
            self.at_once -= 1
        return web.Response(status=self.status, body=self.text, headers={"Content-Type": OPEN_METRICS})


@pytest.fixture
def vllm() -> Vllm:
    return Vllm()


@asynccontextmanager
async def scraping(vllm: Vllm) -> AsyncIterator[TestClient[Any, Any]]:
    """A client of a metrics port in front of `vllm`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", vllm.handle)
    async with TestServer(app) as behind, aiohttp.ClientSession() as http:
        engine = Engine(http, str(behind.make_url("")).rstrip("/"))
        async with TestClient(TestServer(metrics_port.application(lambda: engine))) as client:
            yield client


async def test_a_scrape_gets_vllms_answer_unchanged(vllm: Vllm) -> None:
    async with scraping(vllm) as client:
        answer = await client.get("/metrics")
        assert (answer.status, answer.headers["Content-Type"]) == (200, OPEN_METRICS)
        assert await answer.read() == TEXT


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/update_weights"),
        ("POST", "/collective_rpc"),
        ("GET", "/v1/models"),
        ("GET", "/health"),
        ("GET", "/"),
        ("GET", "/metrics/"),
        ("GET", "/metrics/../update_weights"),
        ("GET", "/metrics%2F..%2Fupdate_weights"),
        ("GET", "//metrics"),
        ("HEAD", "/metrics"),
        ("POST", "/metrics"),
        ("OPTIONS", "/metrics"),
        ("DELETE", "/metrics"),
    ],
)
async def test_other_requests_are_refused_without_asking_vllm(vllm: Vllm, method: str, path: str) -> None:
    async with scraping(vllm) as client:
        url = client.make_url("/").with_path(path, encoded=True)
        async with aiohttp.request(method, url) as answer:
            assert answer.status in (404, 405)
    assert vllm.asked == []


async def test_a_scrapers_query_and_headers_do_not_reach_vllm(vllm: Vllm) -> None:
    async with scraping(vllm) as client:
        headers = {"X-Of-The-Scraper": "yes"}
        assert (await client.get("/metrics?name[]=x&module=y", headers=headers)).status == 200
    assert vllm.asked == [("GET", "/metrics", "")]


async def test_a_scrape_while_the_base_model_loads_gets_503() -> None:
    async with TestClient(TestServer(metrics_port.application(lambda: None))) as client:
        answer = await client.get("/metrics")
        assert (answer.status, await answer.text()) == (503, "vLLM is still loading the base model\n")


async def test_a_refusal_of_the_engine_fails_the_scrape(vllm: Vllm) -> None:
    vllm.status = 500
    async with scraping(vllm) as client:
        answer = await client.get("/metrics")
        assert (answer.status, await answer.text()) == (502, "GET /metrics: 500\n")


async def test_a_scrape_of_a_dead_engine_fails() -> None:
    async with aiohttp.ClientSession() as http:
        engine = Engine(http, "http://127.0.0.1:1")
        async with TestClient(TestServer(metrics_port.application(lambda: engine))) as client:
            assert (await client.get("/metrics")).status == 502


async def test_metrics_beyond_the_size_limit_are_refused(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "MAX_BYTES", len(TEXT) - 1)
    async with scraping(vllm) as client:
        answer = await client.get("/metrics")
        assert answer.status == 502
        assert await answer.text() == f"GET /metrics: vLLM says more than {len(TEXT) - 1} bytes\n"


async def test_a_silent_engine_fails_the_scrape_in_time(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "ANSWER_SECONDS", 0.2)
    vllm.silent = True
    async with scraping(vllm) as client:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(3)))
        assert {answer.status for answer in answers} <= {502, 504}


async def test_scrapers_are_served_one_after_the_other(vllm: Vllm) -> None:
    async with scraping(vllm) as client:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(5)))
        assert [answer.status for answer in answers] == [200] * 5
    assert vllm.max_at_once == 1
