"""Computes each signal's number and compares it with its threshold."""
