"""`planner` decides which objects a job needs, which must go, and what the job's status says. Pure.

Each module decides for one kind of object, or for one part of the status.
"""
