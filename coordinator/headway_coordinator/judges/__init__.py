"""Models that an environment's reward and score may ask.

The coordinator asks them, and delivers the answers.
"""
