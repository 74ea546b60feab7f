"""The ledger in forms that other tools read: CloudEvents and a FOCUS-style table. Pure functions."""
