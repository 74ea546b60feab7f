"""The learner on an accelerator: is it right, and what does it cost."""
