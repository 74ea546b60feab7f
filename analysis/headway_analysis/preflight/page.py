"""Generates docs/preflight.md, which describes every check, from the definitions of the checks.

`python -m headway_analysis.preflight.page [--check]` writes the page, or reports that it differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from headway_analysis.preflight.catalogue import CHECKS
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check

PAGE: Final = Path("docs/preflight.md")
MADE: Final = "Made from the code by `make preflight-page`; do not edit."

INTRODUCTION: Final = f"""\
# The preflight: is this worth training?

{MADE}

A model learns what the reward pays, not what was meant. Before a learner starts, the base model plays
`spec.preflight.episodes` episodes on training rows: the baseline. The checks below judge the baseline. Some
checks also play scripts: episodes without a model, in which the check chooses tool calls and answers.

Each check is a pure function of its measurements, so it always gives the same result. The result has a
number, a threshold, and a 95 % interval if the number comes from a sample. *Surely* above a threshold means
that the whole interval lies above it. The result has up to {MAX_EXAMPLES} examples, and a verdict:

| verdict | means | under `policy: Enforce` |
|---|---|---|
| `Pass` | nothing was found | the job goes on |
| `Warn` | something is odd, or a fault is likely but not sure | the job goes on with a warning |
| `Fail` | a fault is sure | the job ends before a learner starts |
| `Unknown` | too few episodes (the result says how many suffice), or an input is missing | the job goes on |

`spec.preflight.policy` is `Enforce`, `Warn` or `Off`. `spec.preflight.checks` sets it for one check:
`checks: {{foothold: Warn}}`. Results are in `status.preflight`, and with their evidence in `preflight.md` and
`preflight.json` of the job's folder. `make bench-preflight` measures what the checks cost:
[its last result](../bench/results/preflight.md).

## Sampled once

A restarted coordinator reads its job's result back, and samples nothing. An equal job in the same namespace
with the same `output.uri` does this too; its summary then says `read back from an equal preflight`. For that,
write the image with its digest: `environment.image: registry.example.com/env@sha256:...`. With a tag, each
job samples its own baseline, because the tag may name another image by then. Each job with `agent.http` or
`judges` does so too, because a service may have changed unnoticed.
[Concepts](concepts.md#preflight) says which jobs are equal.
"""


def page() -> str:
    """The text of docs/preflight.md."""
    rows = [f"| [{check.id}](#{check.id}) | {check.meaning} | {check.advice} |" for check in CHECKS]
    table = "\n".join(["| check | what it finds | the first thing to change |", "|---|---|---|", *rows])
    return "\n".join([INTRODUCTION, "## All of them", "", table, "", *map(section, CHECKS)])


def section(check: Check) -> str:
    """The section of docs/preflight.md about one check."""
    lines = [
        f"### {check.id}",
        "",
        check.meaning,
        "",
        f"- **Number:** {check.number}",
        f"- **Threshold:** {check.threshold}",
        f"- **Rationale:** {check.reason}",
        f"- **Source:** {check.source}",
        f"- **First:** {check.advice}",
        "- **Needs a model:** "
        f"{'yes' if check.needs_model else 'no; `headway_sandbox.testing` runs it as well'}.",
    ]
    if check.stops_early:
        lines.append(
            "- **Stops early:** a failure that is certain ends the preflight before all episodes are run."
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it differs")
    stale = not PAGE.exists() or PAGE.read_text() != page()
    if parser.parse_args().check:
        if stale:
            sys.exit(f"{PAGE} differs from the code: run make preflight-page")
    elif stale:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
