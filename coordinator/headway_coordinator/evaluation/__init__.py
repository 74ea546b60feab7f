"""Runs evaluation jobs, and the validations of training jobs."""
