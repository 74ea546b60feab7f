"""Every metric of a step as a pure function, and the places that show metrics."""
