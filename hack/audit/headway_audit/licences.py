"""Reads the licences of packages from their metadata, and checks whether the packages may be shipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from license_expression import ExpressionError, get_spdx_licensing

from headway_audit.locks import normal
from headway_audit.policy import Policy

SPDX: Final = get_spdx_licensing()
UNSAID: Final = "License :: OSI Approved"


@dataclass(frozen=True)
class Licence:
    """The licence of one package in one lock."""

    package: str
    expression: str
    """SPDX expression; empty if the package declares none."""


def of_metadata(metadata: Mapping[str, Any], policy: Policy) -> Licence:
    """The licence that a package's metadata declares.

    The policy's own entry takes precedence, then an SPDX expression, then the older fields. Several
    classifiers are joined by AND, because they do not say whether a user may choose between them.
    """
    name = normal(metadata["name"])
    for stated in policy.stated:
        if normal(stated.package) == name:
            return Licence(name, stated.licence)
    if expression := metadata.get("license_expression"):
        return Licence(name, expression)
    text = " ".join(metadata.get("license", "").split())
    if text in policy.readings or is_spdx(text):
        return Licence(name, policy.readings.get(text, text))
    every = metadata.get("classifier", [])
    classifiers = {each for each in every if each.startswith("License :: ") and each != UNSAID}
    return Licence(name, " AND ".join(sorted({policy.readings.get(each, each) for each in classifiers})))


def is_spdx(text: str) -> bool:
    """Whether a text is an SPDX expression whose ids are all in SPDX's list."""
    try:
        tree = SPDX.parse(text, validate=True, strict=True)
    except ExpressionError:
        return False
    return tree is not None and str(tree) == text


def bound(expression: str, allowed: Iterable[str]) -> frozenset[str] | None:
    """The licences of an expression that are not allowed. Of an OR, only the side with the fewest counts.

    The result is None if the text is not an SPDX expression.
    """
    try:
        tree = SPDX.parse(expression, strict=False)
    except ExpressionError:
        return None
    return None if tree is None else _bound(tree, frozenset(allowed))


def _bound(tree: Any, allowed: frozenset[str]) -> frozenset[str]:
    if isinstance(tree, SPDX.AND):
        return frozenset().union(*(_bound(part, allowed) for part in tree.args))
    if isinstance(tree, SPDX.OR):
        return min(
            (_bound(part, allowed) for part in tree.args), key=lambda sides: (len(sides), sorted(sides))
        )
    key = str(tree)
    return frozenset() if key in allowed else frozenset({key})


def judged(licences: Iterable[Licence], policy: Policy) -> list[str]:
    """A sentence for each problem with the licences of a lock."""
    wrong = []
    for licence in licences:
        if not licence.expression:
            wrong.append(f"{licence.package} says no licence: write it under [[stated]] with its source")
            continue
        left = bound(licence.expression, policy.allowed)
        if left is None:
            wrong.append(
                f"{licence.package} says {licence.expression!r}: write what it means under [readings]"
            )
        elif left := left - excepted(licence.package, policy):
            wrong.append(
                f"{licence.package} has {', '.join(sorted(left))}, which is not allowed: "
                "remove the package, or except it under [[excepted]] with a reason"
            )
    return wrong


def excepted(package: str, policy: Policy) -> frozenset[str]:
    """The licences that a package may have besides those in `policy.allowed`."""
    return frozenset(
        licence
        for each in policy.excepted
        if any(fnmatchcase(package, name) for name in each.packages)
        for licence in each.licences
    )


def stale(licences: Iterable[Licence], policy: Policy) -> list[str]:
    """Entries of the policy that no shipped package needs."""
    every = list(licences)
    names = {licence.package for licence in every}
    wrong = [
        f"[[stated]] names {each.package}, which no shipped lock has: remove it"
        for each in policy.stated
        if normal(each.package) not in names
    ]
    for each in policy.excepted:
        for pattern in each.packages:
            of = [licence for licence in every if fnmatchcase(licence.package, pattern)]
            if not any(
                (bound(licence.expression, policy.allowed) or set()) & {*each.licences} for licence in of
            ):
                wrong.append(f"[[excepted]] names {pattern}, which needs no exception: remove it")
    return wrong
