"""`headway check`: what is wrong with a job and its environment, without a model.

Each part gives findings of the form that the preflight's checks have, so both are read and written alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headway_analysis.preflight.definition import Finding
from headway_api.document import Json
from headway_cli.checking import episodes, job, own_tests, rows


def findings(document: Json, folder: Path, most_rows: int) -> Iterator[Finding]:
    """What each check finds, as soon as it is known.

    Args:
        document: the job, as its file has it.
        folder: of the environment's modules.
        most_rows: training rows that episodes are played on.
    """
    found, spec = job.read(document)
    yield from found
    yield from own_tests.run(folder)
    if spec is None:
        saw = "Rows and episodes were not looked at, since the job is wrong."
        yield Finding("rows", "Unknown", saw, advice="Mend the job first.")
        return
    found, data = rows.read(spec)
    yield from found
    yield from episodes.findings(episodes.Asked(document, str(folder), most_rows), spec, data)
