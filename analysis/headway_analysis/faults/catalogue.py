"""All faults, by kind."""

from __future__ import annotations

from typing import Final

from headway_analysis.faults import episodes, images, inputs, manifest, platform, running
from headway_analysis.faults.definition import Fault

FAULTS: Final[tuple[Fault, ...]] = (
    *manifest.FAULTS,
    *inputs.FAULTS,
    *platform.FAULTS,
    *episodes.FAULTS,
    *images.FAULTS,
    *running.FAULTS,
)
