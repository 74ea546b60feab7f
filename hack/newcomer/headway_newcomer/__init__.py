"""Follows the documentation as a new user does, and measures the time of each code block."""
