"""All signals, in the order of `SignalName`: the most severe first."""

from __future__ import annotations

from typing import Final

from headway_analysis.signals.catalogue.behaviour import BEHAVIOUR
from headway_analysis.signals.catalogue.learning import LEARNING
from headway_analysis.signals.catalogue.stability import STABILITY
from headway_api.signals import SignalName

_BY_NAME: Final = {signal.name: signal for signal in (*LEARNING, *STABILITY, *BEHAVIOUR)}
SIGNALS: Final = tuple(_BY_NAME[name] for name in SignalName)
