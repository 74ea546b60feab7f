"""Models and servers that the tests of a module share, because vLLM takes most of a minute to start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_model import write_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny base model with tied embeddings."""
    return write_model(tmp_path_factory.mktemp("base"), seed=0)
