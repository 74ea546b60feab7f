"""docs/troubleshooting.md, made from the catalogue.

`python -m headway_analysis.faults.page [--check]` writes it, or reports that it differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from headway_analysis.faults.catalogue import FAULTS
from headway_analysis.faults.definition import SOON, VARIES, Fault, FaultKind, Stage

PAGE: Final = Path("docs/troubleshooting.md")
INTRODUCTION: Final = f"""\
# Troubleshooting

Made from the code by `make troubleshooting`; do not edit.

A job that cannot continue reports why:

```console
$ kubectl get rltj NAME -o wide                # STATE, and REASON in one word
$ kubectl events --for rltj/NAME               # what happened, with the field, the cause and the fix
$ kubectl describe rltj NAME                   # the conditions: the same, as it is now
```

Each section has the faults of one kind, in the order in which a job meets them. Look for the REASON, or for
words of the message: `{VARIES}` stands for text that varies. An evaluation reports the same
(`kubectl get rlev`). Each fault shows within {SOON} seconds of its cause, unless its row says otherwise.
After `kubectl apply`, the pods that find it must start first. With four such jobs at once on two cores, that
took up to half a minute. `make test-faults` provokes every fault on a cluster.
[Evaluation](evaluation.md#candidates) says why a single candidate of an evaluation fails.

If `kubectl apply` refuses a job, nothing is created. Beside the mistake the API server may say
`<nil>: Invalid value: null: some validation rules were not checked`: correct the mistake, and apply again.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *(section(kind) for kind in FaultKind)]
    return "\n".join(parts)


def section(kind: FaultKind) -> str:
    """The faults of a kind, in the order in which a job meets them."""
    order = list(Stage)
    found = sorted((each for each in FAULTS if each.kind is kind), key=lambda each: order.index(each.stage))
    rows = [f"| {seen(each)} | {each.wrong}{late(each)} | {each.fix} |" for each in found]
    head = [f"## {kind.value}", "", "| what you see | what is wrong | what to do |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def seen(fault: Fault) -> str:
    """The first cell of a fault's row: state, reason and message."""
    where = "`kubectl apply`" if fault.stage is Stage.APPLY else f"`{fault.state}` `{fault.reason}`"
    return f"{where}<br>`{_cell(fault.says)}`"


def late(fault: Fault) -> str:
    """A sentence with the time until the fault is reported; empty if that is as short as for most faults."""
    return f" Reported within {fault.seconds} seconds." if fault.seconds > SOON else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it differs")
    check = parser.parse_args().check
    stale = not PAGE.exists() or PAGE.read_text() != page()
    if check and stale:
        sys.exit(f"{PAGE} differs from the code; run make troubleshooting")
    if stale:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
