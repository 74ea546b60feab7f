"""Models that an environment's reward and score may ask: the coordinator asks, and brings the answer."""
