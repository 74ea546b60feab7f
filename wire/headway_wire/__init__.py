"""HTTP within bounds, for every Headway process that serves or sends: connections, heads, bodies, time."""
