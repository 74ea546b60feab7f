"""What must exist for a job, what must go, and what its status says: decided in `planner`. Pure.

Each module decides for one kind of object, or for one part of the status.
"""
