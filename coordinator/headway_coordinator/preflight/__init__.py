"""The preflight: checks before the first gradient. Each check says what it found and what to change."""
