"""The catalogue of faults: its page is up to date, and each fault in it was provoked on a cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from provoked import PROVOKED

from headway_analysis.faults import page
from headway_analysis.faults.catalogue import FAULTS
from headway_analysis.faults.definition import Fault, FaultKind, Stage

ROOT = Path(__file__).resolve().parents[3]
LONGEST = 25
"""Maximum words of a sentence."""
EACH = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


def test_the_page_is_that_of_the_catalogue() -> None:
    assert (ROOT / page.PAGE).read_text() == page.page(), "run make troubleshooting"


def test_every_fault_is_provoked_on_a_cluster() -> None:
    names = Counter(fault.name for fault in FAULTS)
    assert max(names.values()) == 1
    assert names.keys() == PROVOKED.keys()


def test_there_are_faults_of_each_kind_many_found_after_apply() -> None:
    assert len(FAULTS) >= 60
    assert len([fault for fault in FAULTS if fault.stage is not Stage.APPLY]) >= 25
    assert {fault.kind for fault in FAULTS} == set(FaultKind)


@EACH
def test_a_fault_has_a_fix_and_short_sentences(fault: Fault) -> None:
    assert fault.advice or "; " in fault.says, "neither the message nor the page says what to do"
    for sentence in (fault.wrong, fault.advice):
        assert len(sentence.split()) <= LONGEST, sentence


@EACH
def test_a_pattern_matches_its_message_with_any_values(fault: Fault) -> None:
    assert fault.pattern.search(f"before: {fault.says.replace('...', 'anything')} after")
    assert not fault.pattern.search("another fault")
