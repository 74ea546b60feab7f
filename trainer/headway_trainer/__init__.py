"""The learner: takes a batch, takes a step, publishes weights.

In this package a row is a training row: one sequence for the learner. It is never a row of the dataset. A
tensor's name ends with its axes: "Write code" in CONTRIBUTING.md says what each letter means.
"""
