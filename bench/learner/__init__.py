"""Measures the time, memory and bytes of the learner's work."""
