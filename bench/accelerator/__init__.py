"""Checks whether the learner computes correct results on an accelerator, and measures time and memory."""
