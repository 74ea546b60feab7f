"""What goes wrong with a job, what is seen of it, and what to do: the source of docs/troubleshooting.md.

tests/e2e/test_faults.py provokes each fault on a cluster and holds what is seen against what stands here.
"""
