"""Whether it learns: `make bench-learning`."""
