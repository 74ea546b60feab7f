"""Finds known vulnerabilities of a lock with pip-audit, except those that policy.toml accepts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from headway_audit.locks import REQUIREMENTS, normal
from headway_audit.policy import Policy


@dataclass(frozen=True)
class Vulnerability:
    """A known vulnerability of a pinned version."""

    package: str
    version: str
    ids: tuple[str, ...]
    """The vulnerability's id in the database, then its aliases."""
    fixed: tuple[str, ...]


@dataclass(frozen=True)
class DatabaseAnswer:
    """The database's answer about a lock."""

    asked: int
    found: tuple[Vulnerability, ...]
    unknown: tuple[str, ...]
    """Packages that the database does not know."""
    trouble: str = ""
    """Why there was no answer; empty if there was one."""

    @property
    def reached(self) -> bool:
        """Whether the database answered. A mirror without the database answers too, but knows no package."""
        return not self.trouble and (self.asked == 0 or len(self.unknown) < self.asked)


def parsed(text: str, trouble: str) -> DatabaseAnswer:
    """pip-audit's answer from its output `text`. `trouble` is its error output, used if there is no
    answer."""
    try:
        document = json.loads(text)
        every = document["dependencies"]
        unknown = [normal(one["name"]) for one in every if "skip_reason" in one]
        found = [
            Vulnerability(
                normal(one["name"]),
                one["version"],
                (each["id"], *each.get("aliases", ())),
                tuple(each.get("fix_versions", ())),
            )
            for one in every
            if "skip_reason" not in one
            for each in one["vulns"]
        ]
    except (ValueError, KeyError, TypeError):
        return DatabaseAnswer(0, (), (), (trouble.strip().splitlines() or ["pip-audit gave no answer"])[-1])
    return DatabaseAnswer(len(every), tuple(found), tuple(unknown))


def ask(lock: str) -> DatabaseAnswer:
    """Ask the database of PyPI about every package of a lock."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(REQUIREMENTS / f"{lock}.txt")]
    command += ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return parsed(done.stdout, done.stderr)


def judged(answer: DatabaseAnswer, policy: Policy, today: date) -> list[str]:
    """A sentence for each problem of a lock, according to the database's answer."""
    wrong = [f"{name} is not in the database: nobody looked at it" for name in answer.unknown]
    for each in answer.found:
        accepted = [one for one in policy.known if one.id in each.ids and normal(one.package) == each.package]
        if any(today <= one.until for one in accepted):
            continue
        late = f" (accepted until {accepted[0].until}, which has passed)" if accepted else ""
        then = f"upgrade to {each.fixed[0]} or later" if each.fixed else "there is no fixed version"
        wrong.append(f"{each.package} {each.version} has {each.ids[0]}{late}: {then}")
    return wrong


def stale(answers: Iterable[DatabaseAnswer], policy: Policy) -> list[str]:
    """A sentence for each accepted vulnerability that no lock has any more."""
    have = {(each.package, name) for answer in answers for each in answer.found for name in each.ids}
    return [
        f"[[known]] names {one.id} of {one.package}, which no lock has: remove it"
        for one in policy.known
        if (normal(one.package), one.id) not in have
    ]
