#!/usr/bin/env python3
"""Check the lock files against hack/audit/policy.toml, and write a bill of materials for each shipped lock.

audit.py                      check all locks
audit.py trainer cli          check only these locks
audit.py --require-database   also fail if the database of vulnerabilities cannot be reached
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from headway_audit import bills, licences, locks, policy, vulnerabilities
from headway_audit.licences import Licence
from headway_audit.locks import ROOT, AuditError
from headway_audit.policy import Policy

OUTPUT = ROOT / "build" / "audit"


def say(text: str) -> None:
    print(f"[audit] {text}", file=sys.stderr, flush=True)


def of_licences(lock: str, allowed: Policy) -> tuple[list[str], list[Licence]]:
    """Check the licences of a shipped lock, and write its bill of materials.

    Returns:
        A sentence for each problem, and all licences of the lock.
    """
    packages = bills.metadata(locks.read(lock), allowed.sources)
    found = [licences.of_metadata(each, allowed) for each in packages]
    declared = [
        {**each, "license_expression": licence.expression}
        for each, licence in zip(packages, found, strict=True)
    ]
    target = OUTPUT / f"{lock.replace('/', '-')}.cdx.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(bills.bill(declared), indent=1) + "\n")
    wrong = licences.judged(found, allowed)
    say(f"{lock}: {len(found)} packages, {len(wrong)} licences not allowed; {target.relative_to(ROOT)}")
    return wrong, found


def of_vulnerabilities(
    names: Sequence[str], allowed: Policy
) -> tuple[dict[str, list[str]], list[vulnerabilities.DatabaseAnswer]]:
    """Ask for known vulnerabilities of each lock, up to the first lock for which the database does not
    answer.

    Returns:
        Sentences about the problems of each lock, and the database's answers.
    """
    wrong: dict[str, list[str]] = {}
    answers = []
    for lock in names:
        answer = vulnerabilities.ask(lock)
        answers.append(answer)
        if not answer.reached:
            why = answer.trouble or f"it knows none of the {answer.asked} packages of {lock}"
            say(f"VULNERABILITIES WERE NOT LOOKED FOR: the database cannot be reached: {why}")
            return wrong, answers
        wrong[lock] = vulnerabilities.judged(answer, allowed, datetime.now(UTC).date())
        say(f"{lock}: {answer.asked} packages, {len(answer.found)} known vulnerabilities")
    return wrong, answers


def audit(names: Sequence[str], require_database: bool) -> int:
    allowed = policy.load()
    every = not names
    chosen = list(names) or locks.names()
    wrong, answers = of_vulnerabilities(chosen, allowed)
    reached = all(answer.reached for answer in answers)
    found: list[Licence] = []
    for lock in [lock for lock in locks.SHIPPED if lock in chosen]:
        more, of_lock = of_licences(lock, allowed)
        wrong[lock] = [*wrong.get(lock, []), *more]
        found += of_lock
    if every:
        wrong["policy"] = licences.stale(found, allowed)
        wrong["policy"] += vulnerabilities.stale(answers, allowed) if reached else []
    for lock, sentences in wrong.items():
        for sentence in sentences:
            say(f"{lock}: {sentence}")
    if require_database and not reached:
        return 1
    return 1 if any(wrong.values()) else 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="LOCK", help="a lock below requirements/, without .txt")
    parser.add_argument("--require-database", action="store_true", help="fail where it cannot be reached")
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            locks.read(name)
        return audit(options.names, options.require_database)
    except AuditError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
