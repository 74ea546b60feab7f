"""The preflight's checks of data, environment, reward and base model: pure functions over what was measured.

A check may ask for more than the baseline: it writes scripts (`Script`), which whoever runs it plays in
sandboxes without a model, and then judges the results. The coordinator runs the checks before the first
gradient, and `headway_sandbox.testing` runs those that need no model from an author's own tests.
"""
