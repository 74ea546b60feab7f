"""The driver that runs a validation."""
