"""Placeholder."""

from pathlib import Path

from bench.support.report import Section


def measure(folder: Path) -> Section:
    return Section("none", [])
