"""How the audit evaluates package metadata, the vulnerability database's answers and the policy."""

from __future__ import annotations

import json
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "audit"))

import audit
from headway_audit import bills, licences, locks, policy, vulnerabilities
from headway_audit.licences import Licence
from headway_audit.locks import ROOT, AuditError

HASH = "a" * 64
REASON = "unchanged source, with its notices"
POLICY = policy.parse(f"""
allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause"]
sources = ["built"]
[readings]
"License :: OSI Approved :: BSD License" = "BSD-3-Clause"
[[stated]]
package = "Un.Said"
licence = "MIT"
source = "licenses/LICENSE in its folder"
[[excepted]]
packages = ["nvidia-*", "certifi"]
licences = ["MPL-2.0", "LicenseRef-Proprietary"]
reason = "{REASON}"
[[known]]
id = "CVE-2026-1"
package = "One"
reason = "{REASON}"
until = 2026-12-31
""")
DAY = date(2026, 11, 28)


def metadata(name: str = "one", **fields: Any) -> dict[str, Any]:
    return {"metadata_version": "2.4", "name": name, "version": "1.0", **fields}


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ({"license_expression": "MIT OR GPL-3.0-only", "license": "GPL"}, "MIT OR GPL-3.0-only"),
        ({"license": "MIT"}, "MIT"),
        (
            {"license": "see LICENSE", "classifier": ["License :: OSI Approved :: BSD License"]},
            "BSD-3-Clause",
        ),
        ({"classifier": ["License :: OSI Approved", "Topic :: MIT"]}, ""),
        (
            {"classifier": ["License :: OSI Approved :: BSD License", "License :: X"]},
            "BSD-3-Clause AND License :: X",
        ),
        ({}, ""),
    ],
)
def test_the_newest_field_says_the_licence(fields: dict[str, Any], expression: str) -> None:
    assert licences.of_metadata(metadata(**fields), POLICY) == Licence("one", expression)


def test_a_licence_that_the_policy_states_comes_first() -> None:
    licence = licences.of_metadata(metadata("un_said", license="GPL-3.0-only"), POLICY)
    assert licence == Licence("un-said", "MIT")


@pytest.mark.parametrize(
    ("expression", "left"),
    [
        ("MIT", set()),
        ("GPL-3.0-only", {"GPL-3.0-only"}),
        ("MIT OR GPL-3.0-only", set()),
        ("MIT AND GPL-3.0-only", {"GPL-3.0-only"}),
        ("(MIT OR GPL-3.0-only) AND AGPL-3.0-only", {"AGPL-3.0-only"}),
        ("Apache-2.0 WITH LLVM-exception", set()),
        ("MIT WITH LLVM-exception", {"MIT WITH LLVM-exception"}),
        ("LicenseRef-Proprietary", {"LicenseRef-Proprietary"}),
    ],
)
def test_an_expression_binds_by_the_side_that_one_chooses(expression: str, left: set[str]) -> None:
    assert licences.bound(expression, POLICY.allowed) == left


@pytest.mark.parametrize(
    "text", ["", "MIT AND", "(((", "License :: OSI Approved :: X (Y)", "MIT License, see below"]
)
def test_a_text_that_is_no_licence_expression_is_not_parsed(text: str) -> None:
    left = licences.bound(text, POLICY.allowed)
    assert left is None or left


@given(st.text(max_size=60))
def test_no_text_is_allowed_but_by_an_allowed_licence(text: str) -> None:
    left = licences.bound(text, POLICY.allowed)
    assert left != set() or any(each in text for each in POLICY.allowed)


def test_a_copyleft_licence_fails_unless_it_is_excepted() -> None:
    found = [Licence("certifi", "MPL-2.0"), Licence("other", "MPL-2.0"), Licence("nvidia-x", "GPL-2.0-only")]
    faults = licences.judged(found, POLICY)
    assert [each.split(",")[0] for each in faults] == ["other has MPL-2.0", "nvidia-x has GPL-2.0-only"]


def test_a_package_without_a_licence_fails() -> None:
    (fault,) = licences.judged([Licence("one", "")], POLICY)
    assert "one says no licence" in fault


def test_entries_that_nothing_needs_fail() -> None:
    found = [Licence("certifi", "MIT"), Licence("nvidia-x", "LicenseRef-Proprietary")]
    assert licences.stale(found, POLICY) == [
        "[[stated]] names Un.Said, which no shipped lock has: remove it",
        "[[excepted]] names certifi, which needs no exception: remove it",
    ]


def answer(*vulns: dict[str, Any], name: str = "one") -> vulnerabilities.DatabaseAnswer:
    found = {"dependencies": [{"name": name, "version": "1.0", "vulns": list(vulns)}]}
    return vulnerabilities.parsed(json.dumps(found), "")


CVE = {"id": "PYSEC-1", "aliases": ["CVE-2026-1"], "fix_versions": ["1.1"]}


def test_a_known_vulnerability_fails() -> None:
    (fault,) = vulnerabilities.judged(answer(CVE, name="other"), POLICY, DAY)
    assert fault == "other 1.0 has PYSEC-1: upgrade to 1.1 or later"


def test_an_accepted_vulnerability_passes_until_its_day() -> None:
    assert vulnerabilities.judged(answer(CVE), POLICY, date(2026, 12, 31)) == []
    (fault,) = vulnerabilities.judged(answer(CVE), POLICY, date(2027, 1, 1))
    assert "accepted until 2026-12-31, which has passed" in fault


def test_an_accepted_vulnerability_that_is_gone_fails() -> None:
    assert vulnerabilities.stale([answer(CVE)], POLICY) == []
    assert len(vulnerabilities.stale([answer()], POLICY)) == 1


def test_a_package_that_the_database_does_not_know_fails() -> None:
    text = {
        "dependencies": [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "none"}]
    }
    found = vulnerabilities.parsed(json.dumps(text), "")
    assert found.reached
    assert vulnerabilities.judged(found, POLICY, DAY) == ["b is not in the database: nobody looked at it"]


def test_a_mirror_without_a_database_is_recognized() -> None:
    text = json.dumps({"dependencies": [{"name": "a", "skip_reason": "not found"}]})
    assert not vulnerabilities.parsed(text, "").reached


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"dependencies": 3}', '{"dependencies": [{}]}', "null"])
def test_without_an_answer_the_error_of_pip_audit_is_shown(text: str) -> None:
    found = vulnerabilities.parsed(text, "Traceback\nConnectionError: no route\n")
    assert (found.reached, found.trouble) == (False, "ConnectionError: no route")


def test_a_lock_is_read_with_its_hashes() -> None:
    lines = [
        "# made by uv",
        "One_Two[extra]==1.0 ; python_version < '4' \\",
        f"    --hash=sha256:{HASH}",
        "    # via x",
    ]
    lock = "\n".join(lines)
    found = locks.pins(lock)
    assert {name: (pin.version, pin.hashes) for name, pin in found.items()} == {"one-two": ("1.0", {HASH})}
    assert "via" not in found["one-two"].lines


@pytest.mark.parametrize("line", ["one>=1.0", "one==1.0", "one @ https://example.com/one.whl"])
def test_a_lock_without_pins_or_hashes_is_refused(line: str) -> None:
    with pytest.raises(AuditError, match=r"one.* is not pinned with a hash"):
        locks.pins(line + "\n")


def test_another_file_than_the_lock_s_is_refused() -> None:
    pins = locks.pins(f"one==1.0 \\\n    --hash=sha256:{HASH}\n")
    each = {"metadata": metadata(), "download_info": {"archive_info": {"hashes": {"sha256": HASH}}}}
    assert list(bills.compared({"install": [each]}, pins)) == [metadata()]
    each["download_info"]["archive_info"]["hashes"]["sha256"] = "b" * 64
    with pytest.raises(AuditError, match="another file of one"):
        list(bills.compared({"install": [each]}, pins))


def test_text_of_several_lines_stays_one_header() -> None:
    headers = bills.headers(metadata(summary="first\nName: other\n\nlast"))
    assert re.findall(r"^Name: .*", headers, re.MULTILINE) == ["Name: one"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("allowed = [", "not TOML"),
        ("allowed = []", "allowed"),
        ('allowed = ["MIT"]\nbanned = ["GPL"]', "banned"),
        (
            'allowed = ["MIT"]\n[[known]]\nid = "X"\npackage = "a"\nreason = "no"\nuntil = 2026-01-01',
            "known.0.reason",
        ),
        (f'allowed = ["MIT"]\n[[known]]\nid = "X"\npackage = "a"\nreason = "{REASON}"', "known.0.until"),
    ],
)
def test_the_error_of_an_invalid_policy_names_its_field(text: str, words: str) -> None:
    with pytest.raises(AuditError, match=words):
        policy.parse(text)


def test_the_repository_s_policy_can_be_read() -> None:
    found = policy.load()
    unread = [each for each in found.allowed if licences.bound(each, found.allowed) != set()]
    assert unread == []


def test_the_licences_of_every_image_bind() -> None:
    installed = {
        lock
        for file in (ROOT / "images").glob("*/Dockerfile")
        for lock in re.findall(r"install\.sh (?:\$\{)?([\w/-]+)", file.read_text())
    }
    assert installed - {"LOCK"} <= set(locks.SHIPPED)
    assert installed >= {"operator", "LOCK", "guests/suite"}


def test_every_lock_is_audited() -> None:
    assert set(locks.SHIPPED) <= set(locks.names())
    assert {"all", "bootstrap", "build", "dev", "guests/openai"} <= set(locks.names())


@pytest.mark.parametrize(("strict", "code"), [(False, 0), (True, 1)])
def test_no_database_fails_only_where_one_is_required(
    strict: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none = vulnerabilities.DatabaseAnswer(0, (), (), "ConnectionError: no route")
    monkeypatch.setattr(vulnerabilities, "ask", lambda lock: none)
    assert audit.audit(["bootstrap"], strict) == code
    assert "VULNERABILITIES WERE NOT LOOKED FOR" in capsys.readouterr().err


def test_a_lock_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["nothing"]) == 1
    assert "requirements/nothing.txt does not exist" in capsys.readouterr().err
