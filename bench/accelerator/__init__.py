"""Whether the learner computes the right results on an accelerator, and what it costs."""
