"""Every stage of a job's life, evaluated once by kstatus, Argo CD and Flux."""

from __future__ import annotations

import gitops
import pytest
from job_stages import STAGES


@pytest.fixture(scope="session")
def stages() -> gitops.Stages:
    """The job of each stage, with the tools' verdicts."""
    keys = [(kind, name) for kind, makes in STAGES.items() for name in makes]
    bodies = [STAGES[kind][name]().body for kind, name in keys]
    verdicts = gitops.judge(gitops.program(), bodies)
    return dict(zip(keys, zip(bodies, verdicts, strict=True), strict=True))
