"""Every figure of a step as a pure function, and where figures are shown."""
