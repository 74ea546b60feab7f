"""Faults of a job, their symptoms and their fixes: the source of docs/troubleshooting.md.

tests/e2e/test_faults.py provokes each fault on a cluster and compares the symptoms with this catalogue.
"""
