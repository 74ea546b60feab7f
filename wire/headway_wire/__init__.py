"""HTTP within bounds, for every process of Headway that listens or asks: connections, heads, bodies, time."""
