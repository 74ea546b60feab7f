"""Objects as `kubectl get --watch` shows them. A script instead of kubectl writes what a test needs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))

from headway_demo.kube import Kube, KubeError
from headway_demo.watch import follow

FIRST, SECOND = {"number": 1, "nested": {"words": "} {"}}, {"number": 2, "nested": {}}
ENDLESS = "exec sleep 60\n"


def kubectl(folder: Path, text: str, *objects: object) -> Kube:
    """A script that writes the objects, and then does what `text` says. It counts its starts."""
    path = folder / "kubectl"
    shown = "\n".join(json.dumps(each, indent=4) for each in objects)
    (folder / "objects").write_text(shown + "\n" if objects else "")
    path.write_text(f"#!/bin/sh\necho start >> {folder}/starts\ncat {folder}/objects\n{text}")
    path.chmod(0o755)
    return Kube(None, str(path))


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


@pytest.mark.timeout(30)
def test_each_object_is_seen_as_it_is_written(tmp_path: Path) -> None:
    changes = kubectl(tmp_path, ENDLESS, FIRST, SECOND).changes("job", deadline_s=20)
    assert [next(changes), next(changes)] == [FIRST, SECOND]
    changes.close()
    assert starts(tmp_path) == 1


@pytest.mark.timeout(30)
def test_a_watch_ends_at_its_deadline(tmp_path: Path) -> None:
    began = time.monotonic()
    assert [*kubectl(tmp_path, ENDLESS, FIRST).changes("job", deadline_s=2)] == [FIRST]
    assert time.monotonic() - began >= 2


@pytest.mark.timeout(30)
def test_a_watch_that_the_server_ends_begins_again(tmp_path: Path) -> None:
    changes = kubectl(tmp_path, "exit 0\n", FIRST).changes("job", deadline_s=20)
    assert [next(changes) for _ in range(3)] == [FIRST] * 3
    changes.close()
    assert starts(tmp_path) == 3


@pytest.mark.timeout(30)
def test_a_watch_that_ends_early_is_not_a_refusal(tmp_path: Path) -> None:
    assert [*kubectl(tmp_path, "sleep 0.2\nexit 0\n").changes("pods", deadline_s=2)] == []
    assert starts(tmp_path) > 1


@pytest.mark.timeout(30)
def test_a_refusal_has_kubectls_words(tmp_path: Path) -> None:
    refused = kubectl(tmp_path, "echo 'Error: jobs \"x\" not found' >&2\nexit 1\n")
    with pytest.raises(KubeError, match='kubectl get job x --watch: Error: jobs "x" not found'):
        next(refused.changes("job", "x", deadline_s=20))


def job(kind: str) -> dict[str, object]:
    """A job with one condition."""
    conditions = [{"type": kind, "status": "True", "reason": "Because", "message": "words"}]
    return {"kind": "RLTrainingJob", "status": {"state": kind, "conditions": conditions}}


@pytest.mark.timeout(30)
def test_the_demo_follows_a_job_to_its_end(tmp_path: Path) -> None:
    lines: list[str] = []
    kube = kubectl(tmp_path, ENDLESS, job("Progressing"), job("Complete"))
    assert follow(kube, "ns", "demo", deadline_s=20, show=lines.append) == job("Complete")
    assert [line.split()[2:4] for line in lines] == [["state", "Progressing"], ["state", "Complete"]]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("kind", "words"), [("Failed", "failed"), ("Progressing", "not complete after 2 s")])
def test_a_job_that_fails_or_is_late_is_explained(tmp_path: Path, kind: str, words: str) -> None:
    kube = kubectl(tmp_path, ENDLESS, job(kind))
    with pytest.raises(KubeError, match=rf"job demo (is )?{words}:\n.*{kind}.*Because"):
        follow(kube, "ns", "demo", deadline_s=2, show=lambda line: None)
