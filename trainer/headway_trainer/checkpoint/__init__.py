"""What survives the learner: its resumable state, and the journal that says which step is durable."""
