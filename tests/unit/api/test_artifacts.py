"""The documentation lists every kind of object in a job's folder."""

from __future__ import annotations

import inspect
from datetime import date
from pathlib import Path

import pytest

from headway_api import artifacts
from headway_api.artifacts import Layout, by_number

CONCEPTS = (Path(__file__).parents[3] / "docs" / "concepts.md").read_text()
ARGUMENTS = {"date": date(2026, 11, 3), "int": 12, "str": "t0-000007"}


def keys() -> set[str]:
    """First part of every existing key below the root, or the first two parts of trajectories."""
    layout = Layout("s3://b/o", "ns", "job", "uid")
    uris = []
    for name, member in inspect.getmembers(Layout):
        if isinstance(member, property):
            uris.append(getattr(layout, name))
        elif inspect.isfunction(member) and not name.startswith("_"):
            wanted = list(inspect.signature(member).parameters.values())[1:]
            uris.append(member(layout, *(ARGUMENTS[parameter.annotation] for parameter in wanted)))
    below = [uri.removeprefix(layout.root).strip("/").split("/") for uri in uris if uri != layout.root]
    return {"/".join(parts[: 1 + (parts[0] == "trajectories")]) for parts in below}


def test_every_kind_of_key_is_there() -> None:
    assert keys() == {
        "trajectories/train",
        "trajectories/validation",
        "trajectories/evaluation",
        "trajectories/preflight",
        "trajectories/failed",
        "preflight",
        "preflight-judgements",
        "preflight.json",
        "preflight.md",
        "validations",
        "prices",
        "estimates",
        "usage",
        "export",
        "judgements",
        "checkpoints",
        "weights",
        "steps",
        "figures",
        "coordinators",
        "rows.sha256",
        "chat-templates",
        "learners",
        "remedies",
        "latest.json",
        "mlflow-run",
        "mlflow-runs",
        "job.json",
        "report.html",
        "report.json",
        "report.md",
        "results.parquet",
        "logs",
    }


@pytest.mark.parametrize("key", sorted(keys()))
def test_every_key_is_listed_in_the_documentation(key: str) -> None:
    listing = CONCEPTS.split("## Where a job's data lies")[1]
    assert f"\n  {key}" in listing
    assert f"\n    {key}" in (artifacts.__doc__ or "")


def test_other_files_beside_numbered_folders_are_skipped() -> None:
    folder = "s3://b/job/checkpoints"
    ours = [f"{folder}/000012/000000/report.json", f"{folder}/1234567/a.pt"]
    theirs = ["000012-copy/a.pt", "12/a.pt", "README", "000013", "²/a.pt", "+00012/a.pt"]
    found = by_number([*ours, *(f"{folder}/{name}" for name in theirs)], folder)
    assert found == {12: ours[:1], 1234567: ours[1:]}
