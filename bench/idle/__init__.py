"""Measures the CPU, memory and requests of idle jobs."""
