"""The learner: fetches a batch, trains one step on it, and publishes the new weights.

In this package a row is a training row: one sequence for the learner. It is never a row of the dataset. A
tensor's name ends with its axes: "Write code" in CONTRIBUTING.md says what each letter means.
"""
