"""Which group runs, which is trained next, and how far it may lag."""
