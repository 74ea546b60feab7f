"""The table of cases is the unit tests'. The CRDs are the repository's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "unit" / "api"))


@pytest.fixture(scope="module")
def served(cluster: Any) -> Any:
    """The cluster, once it serves both kinds of job."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    for crd in sorted((ROOT / "crds").glob("*.yaml")):
        name = yaml.safe_load(crd.read_text())["metadata"]["name"]
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")
    return cluster
