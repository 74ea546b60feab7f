"""The learner: takes a batch, takes a step, publishes weights."""
