"""The errors that a command reports as a message, without a traceback. The message says what to write."""

from __future__ import annotations

from typing import Final

from headway_cli.cluster import ClusterError
from headway_cli.local.machine import MachineBusyError
from headway_cli.local.manifest import ManifestError
from headway_cli.runs import RunNotFoundError

EXPECTED_ERRORS: Final = (ManifestError, MachineBusyError, ClusterError, RunNotFoundError)
