"""Measures the time of the preflight's checks, and how often they are wrong: `make bench-preflight`."""
