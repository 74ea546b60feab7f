"""`headway check`: finds what is wrong with a job and its environment, without a model.

Each module here returns `Finding` objects, as the preflight's checks do. So one form serves both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headway_analysis.preflight.definition import Finding
from headway_api.document import Json
from headway_cli.checking import episodes, job, own_tests, rows


def findings(document: Json, folder: Path, max_rows: int) -> Iterator[Finding]:
    """The findings of each check, as soon as they are known.

    Args:
        document: the job, as in its file.
        folder: folder of the environment's modules.
        max_rows: maximum training rows on which episodes are played.
    """
    found, spec = job.read(document)
    yield from found
    yield from own_tests.run(folder)
    if spec is None:
        observed = "Rows and episodes were not checked, because the job is invalid."
        yield Finding("rows", "Unknown", observed, advice="Correct the job first.")
        return
    found, data = rows.read(spec)
    yield from found
    yield from episodes.findings(episodes.PlayRequest(document, str(folder), max_rows), spec, data)
