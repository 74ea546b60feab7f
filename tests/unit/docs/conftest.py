"""Makes the unit tests' API server importable, which checks the manifests of pages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
