"""From the spec of a job's judges to whoever asks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from headway_api import names
from headway_api.artifacts import Layout
from headway_api.spec.judge import Judge as JudgeSpec
from headway_api.store import Store
from headway_coordinator.endpoint.token import TokenWrong, read_token
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.judge import Judge
from headway_coordinator.judges.kept import Kept


def connected(
    specs: Sequence[JudgeSpec],
    http: aiohttp.ClientSession,
    store: Store,
    layout: Layout,
    folder: Path = Path(names.JUDGES_DIR),
) -> Judges:
    """The judges of a job. Nothing is sent yet.

    Args:
        http: without cookies.
        folder: where each judge's token lies.
    """
    kept = Kept(store, layout)
    return Judges({spec.name: Judge(http, spec, token_of(spec, folder), kept) for spec in specs})


def token_of(spec: JudgeSpec, folder: Path) -> Callable[[], str | None]:
    """Reads a judge's token at each question, so that a corrected Secret is taken up."""

    def read() -> str | None:
        if spec.secret_ref is None:
            return None
        try:
            return read_token(folder / spec.name)
        except TokenWrong as wrong:
            raise TokenWrong(f"the key `token` of the Secret {spec.secret_ref.name} {wrong}") from wrong

    return read
