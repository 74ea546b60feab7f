"""`planner` decides which objects a job needs, which to delete, and what the job's status says. Pure.

Each module decides for one kind of object, or for one part of the status.
"""
