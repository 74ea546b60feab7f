"""Changes to a running job: `headway_analysis.remedies` decides them, and the learner carries them out.

This package asks for decisions and stores them.

journal.py   decisions in the artifact store
driver.py    when a remedy is decided, and because of what
shown.py     remedies in status and MLflow
"""
