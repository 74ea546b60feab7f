"""The table of docs/gitops.md equals what the tools' own code says: kstatus, Argo CD and Flux."""

from __future__ import annotations

import re

import gitops
import kstatus
import pytest
from gitops import ROOT, Stages, Verdict
from job_stages import STAGES

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(gitops.FIRST_BUILD_S + 120)]
PAGE = ROOT / "docs" / "gitops.md"
HEAD = "| stage | job | kstatus | Argo CD | Flux |"
ENDS = {"Current": "Ready", "Failed": "Failed", "InProgress": "TimedOut", "Terminating": "TimedOut"}
"""The kstatus verdict of a job -> how a wait for it ends."""


def table() -> dict[tuple[str, str], tuple[str, str, str]]:
    """(kind, stage) -> the verdicts of kstatus, Argo CD and Flux, as the page has them."""
    lines = PAGE.read_text().partition(HEAD)[2].partition("\n\n")[0].splitlines()[2:]
    found: dict[tuple[str, str], tuple[str, str, str]] = {}
    for line in lines:
        stage, kind, *says = (cell.strip() for cell in line.strip("|").split("|"))
        kinds = gitops.KINDS if kind == "both" else (kind.strip("`"),)
        for each in kinds:
            assert (each, stage) not in found, f"{stage} of {each} stands twice in {PAGE.name}"
            found[each, stage] = (says[0], says[1], says[2])
    return found


def test_the_page_has_exactly_the_stages() -> None:
    assert set(table()) == {(kind, stage) for kind, makes in STAGES.items() for stage in makes}


@pytest.mark.parametrize(("kind", "stage"), [(kind, stage) for kind in STAGES for stage in STAGES[kind]])
def test_the_page_has_the_verdicts_of_the_tools(stages: Stages, kind: str, stage: str) -> None:
    found = stages[kind, stage][1]
    assert (found.kstatus, found.argo, found.flux) == table()[kind, stage]


def test_a_failed_job_ends_a_wait_at_once(stages: Stages) -> None:
    for (kind, stage), (_, found) in stages.items():
        assert found.ends == ENDS[found.flux], (kind, stage)
        assert found.ends_plainly == ENDS[found.kstatus], (kind, stage)


def test_a_gate_that_has_not_passed_fails_with_its_numbers(stages: Stages) -> None:
    body, found = stages["RLEvalJob", "the gate has not passed"]
    (gate,) = [item for item in body["status"]["conditions"] if item["type"] == "GatePassed"]
    assert gate["status"] == "False"
    assert (found.ends, found.ends_plainly, found.argo) == ("Failed", "Failed", "Degraded")
    assert re.search(r"GateNotPassed: .*external_score of tuned is 0\.\d+.*minimum 0\.99", found.says)


def test_a_gate_that_has_passed_shows_its_numbers(stages: Stages) -> None:
    assert re.search(r"Passed: .*external_score of tuned is 0\.\d+", stages["RLEvalJob", "complete"][1].says)


def is_let_through(found: Verdict) -> set[str]:
    """The tools that go on at this verdict."""
    ready = {
        "kstatus": found.kstatus == "Current",
        "Argo CD": found.argo == "Healthy",
        "Flux": found.flux == "Current",
    }
    return {tool for tool, yes in ready.items() if yes}


def test_a_gate_lets_through_only_what_has_passed_it(stages: Stages) -> None:
    """This holds for a job that counts as ready by its success."""
    for stage in STAGES["RLEvalJob"]:
        if not re.search(r"`(Accepted|Running)`|without a gate", stage):
            through = is_let_through(stages["RLEvalJob", stage][1])
            assert through == ({"kstatus", "Argo CD", "Flux"} if stage == "complete" else set()), stage


def test_flux_passes_only_passed_gates_under_any_policy(stages: Stages) -> None:
    through = {
        stage for (kind, stage), (_, v) in stages.items() if kind == "RLEvalJob" and v.flux == "Current"
    }
    assert through == {"complete"}


def test_the_rules_of_other_tests_are_kstatus_own(stages: Stages) -> None:
    """tests/support/kstatus.py has these rules in Python, for tests that build no tool."""
    for key, (body, found) in stages.items():
        assert kstatus.verdict(body) == found.kstatus, key
