"""Attacks that strangers try on a cluster: programs for its pods, and the objects that run them."""
