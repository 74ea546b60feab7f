"""All faults, by kind."""

from __future__ import annotations

from typing import Final

from headway_analysis.faults import around, episodes, images, inputs, manifest
from headway_analysis.faults.definition import Fault

FAULTS: Final[tuple[Fault, ...]] = (
    *manifest.FAULTS,
    *inputs.FAULTS,
    *around.FAULTS,
    *episodes.FAULTS,
    *images.FAULTS,
)
