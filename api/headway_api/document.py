"""JSON objects: what the API server, a manifest or a response holds."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""An object that its owner may change."""
JsonView = Mapping[str, Any]
"""An object that is only read."""
