"""Benchmarks: each writes its tables to `bench/results/`, with the command that makes them again."""
