"""Benchmarks. Each writes its tables to `bench/results/`, with the command that measures them again."""
