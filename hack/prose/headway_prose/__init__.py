"""Checks pages and sources for plain words: short sentences, and no retired phrase."""
