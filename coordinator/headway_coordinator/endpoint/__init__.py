"""Candidates of an evaluation that are served elsewhere, behind an OpenAI-compatible endpoint."""
