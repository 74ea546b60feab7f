"""Code that benchmarks share."""
