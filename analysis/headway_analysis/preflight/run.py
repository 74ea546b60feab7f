"""A preflight: which scripts must be played, what each check finds, and whether the job goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from headway_analysis.preflight.catalogue import CHECKS
from headway_analysis.preflight.definition import Check, Finding, Verdict
from headway_analysis.preflight.evidence import Baseline, PlayedScript, Script
from headway_api.bounds import shortened

Policy = Literal["Enforce", "Warn", "Off"]
ERROR: Final = 300
"""Maximum characters of a check's error."""
GRAVEST_FIRST: Final[tuple[Verdict, ...]] = ("Fail", "Warn", "Unknown", "Pass")


@dataclass(frozen=True)
class Decision:
    """The verdict of a preflight."""

    stops: list[Finding]
    """Findings of checks that failed, and that stop the job."""
    warns: list[Finding]
    """Findings that are only reported: warnings, and failures under policy Warn."""
    unknown: list[Finding]

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on."""
        return not self.stops


def scripts_of(
    baseline: Baseline, overrides: Mapping[str, Policy] | None = None, checks: Sequence[Check] = CHECKS
) -> list[Script]:
    """All scripts to play. A script with `after` must be played after the script with that label."""
    return [script for check in _on(checks, overrides) for script in _scripts(check, baseline)[0]]


def findings(
    baseline: Baseline,
    played: Sequence[PlayedScript],
    overrides: Mapping[str, Policy] | None = None,
    checks: Sequence[Check] = CHECKS,
) -> list[Finding]:
    """What each check finds, in the catalogue's order.

    Args:
        played: results of the scripts, in any order; some may be missing.
        overrides: id of a check -> its policy. A check with the policy Off has no finding.
    """
    by_check: dict[str, dict[str, PlayedScript]] = {}
    for one in played:
        by_check.setdefault(one.script.check, {})[one.script.label] = one
    return [_found(check, baseline, by_check.get(check.id, {})) for check in _on(checks, overrides)]


def _found(check: Check, baseline: Baseline, runs: Mapping[str, PlayedScript]) -> Finding:
    """One check's finding. It is Unknown if the check's own code raises, unless its judge returns Fail."""
    scripts, broken = _scripts(check, baseline)
    found = _judged(check, baseline, [runs[each.label] for each in scripts if each.label in runs])
    return found if broken is None or found.verdict == "Fail" else broken


def _scripts(check: Check, baseline: Baseline) -> tuple[Sequence[Script], Finding | None]:
    try:
        return check.scripts(baseline), None
    except Exception as error:  # model, data or environment may cause any error
        return (), _itself(check, error)


def _judged(check: Check, baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    try:
        return check.judge(baseline, played)
    except Exception as error:  # model, data or environment may cause any error
        return _itself(check, error)


def _itself(check: Check, error: Exception) -> Finding:
    message = shortened(f"{type(error).__name__}: {error}", ERROR)
    advice = "Report this as a bug of Headway; spec.preflight.checks can switch the check off."
    return Finding(check.id, "Unknown", f"The check itself failed: {message}", advice=advice)


def certain_failure(
    baseline: Baseline, overrides: Mapping[str, Policy] | None = None, checks: Sequence[Check] = CHECKS
) -> Finding | None:
    """A failure that no further episode can change; None if there is none so far.

    The caller may ask after every episode. Only checks with `stops_early` take part: their judges allow for
    repeated looks, so these do not increase their error.
    """
    for check in _on(checks, overrides):
        if check.stops_early and (found := _judged(check, baseline, ())).verdict == "Fail":
            return found
    return None


def verdict(
    found: Sequence[Finding], policy: Policy = "Enforce", overrides: Mapping[str, Policy] | None = None
) -> Decision:
    """Decide which findings stop the job, and which are only reported.

    Args:
        policy: `spec.preflight.policy`.
        overrides: `spec.preflight.checks`: id of a check -> its policy.
    """
    own = overrides or {}
    asked = [(finding, own.get(finding.check, policy)) for finding in found]
    known = [(finding, rule) for finding, rule in asked if rule != "Off"]
    return Decision(
        stops=[each for each, rule in known if each.verdict == "Fail" and rule == "Enforce"],
        warns=[
            each
            for each, rule in known
            if each.verdict == "Warn" or (each.verdict == "Fail" and rule == "Warn")
        ],
        unknown=[each for each, _ in known if each.verdict == "Unknown"],
    )


def gravest_first(found: Sequence[Finding]) -> list[Finding]:
    """The findings sorted by verdict: Fail, Warn, Unknown, Pass. Equal verdicts keep their order."""
    return sorted(found, key=lambda finding: GRAVEST_FIRST.index(finding.verdict))


def _on(checks: Sequence[Check], overrides: Mapping[str, Policy] | None) -> list[Check]:
    return [check for check in checks if (overrides or {}).get(check.id) != "Off"]
