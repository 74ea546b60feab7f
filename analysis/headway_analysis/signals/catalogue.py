"""All signals, in the order of `SignalName`: the gravest first."""

from headway_analysis.signals.definition import Signal

SIGNALS: tuple[Signal, ...] = ()
