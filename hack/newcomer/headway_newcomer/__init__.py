"""Follows the documentation as a new user does, and times each block."""
