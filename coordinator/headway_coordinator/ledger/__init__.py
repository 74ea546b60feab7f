"""The bill: usage events, their immutable segments, and their totals."""
