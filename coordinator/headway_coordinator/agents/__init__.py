"""Three ways to act out an episode; `builtin` is the platform's own tool loop."""
