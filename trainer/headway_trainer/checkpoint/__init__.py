"""The learner's data that survives its process: its resumable state, and the journal of durable steps."""
