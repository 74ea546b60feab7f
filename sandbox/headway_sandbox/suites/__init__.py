"""Samples of tasks of Inspect AI as episodes (`spec.suites` of an RLEvalJob)."""
