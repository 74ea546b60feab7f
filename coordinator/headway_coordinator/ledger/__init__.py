"""The bill: usage events, their immutable segments, and the totals folded from them."""
