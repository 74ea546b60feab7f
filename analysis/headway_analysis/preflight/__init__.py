"""The preflight's checks of data, environment, reward and base model, as pure functions over measurements.

A check may need more than the baseline episodes. It then makes scripts (`Script`), and judges their results.
The caller plays the scripts in sandboxes without a model. The coordinator runs the checks before the first
gradient. `headway_sandbox.testing` runs the checks that need no model from an environment author's own tests.
"""
