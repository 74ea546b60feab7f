"""Contracts of Headway: what users write, what the platform answers, and what passes between processes."""
