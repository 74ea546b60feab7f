"""Evaluations, and the driver of a training job's validations."""
