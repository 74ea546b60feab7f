"""What the learner computes, and what it costs."""
