"""What remains after the learner ends: its resumable state, and the journal of which step is durable."""
