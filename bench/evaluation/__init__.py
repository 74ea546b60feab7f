"""How fast an evaluation runs: `make bench-eval`."""
