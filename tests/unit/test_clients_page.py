"""docs/agents.md names the tested clients, with the versions in the guests' requirements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guest_stage import GUESTS, PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "agents.md").read_text()
SERVES = {"starlette", "uvicorn"}
"""Packages that serve an agent over HTTP, and are no clients."""


@pytest.mark.parametrize("environment", sorted(set(PROGRAMS.values())))
def test_the_page_names_each_client_at_its_version(environment: str) -> None:
    pins = (ROOT / "requirements" / "guests" / f"{environment}.in").read_text()
    clients = re.findall(r"^([a-z-]+)(?:\[[a-z]+\])?==(\S+)$", pins, re.MULTILINE)
    pinned = [f"{name} {version}" for name, version in clients if name not in SERVES]
    assert pinned
    assert [one for one in pinned if one not in PAGE] == []


def test_each_program_is_in_a_test_of_the_target() -> None:
    target = re.search(r"^test-clients: CLIENTS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert target is not None
    tests = [(GUESTS.parent / name).read_text() for name in target[1].split()]
    assert {path.stem for path in GUESTS.glob("*_agent.py")} == set(PROGRAMS)
    assert [name for name in PROGRAMS if not any(f'"{name}"' in text for text in tests)] == []
