"""HTTP with bounds on connections, heads, bodies and time, for every Headway process that serves or sends."""
