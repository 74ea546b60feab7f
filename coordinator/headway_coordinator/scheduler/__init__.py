"""Decides which group runs, which is trained next, and how stale it may be."""
