"""The preflight's checks of data, environment, reward and base model: pure functions over what was measured.

A check may ask for more than the baseline. It writes scripts (`Script`), and judges their results. The caller
plays the scripts in sandboxes without a model. The coordinator runs the checks before the
first gradient, and `headway_sandbox.testing` runs those that need no model from an author's own tests.
"""
