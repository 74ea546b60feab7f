"""Checks pages and sources for plain words: short sentences, and no phrase that has a plainer one."""
