"""Three kinds of agents that play an episode; `builtin` is the platform's own tool loop."""
