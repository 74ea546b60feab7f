"""Changes to a running job: `headway_analysis.remedies` decides them, and the learner carries them out.

This package asks for decisions and stores them.

journal.py   decisions in the artifact store
driver.py    asks for a decision before each step, at a signal or a person's order
shown.py     remedies in status and MLflow
"""
