"""Runs samples of Inspect AI's tasks as episodes (`spec.suites` of an RLEvalJob)."""
