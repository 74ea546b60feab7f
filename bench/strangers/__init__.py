"""Measures the effect of hostile requests on the gateway."""
