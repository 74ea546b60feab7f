"""How a running job is changed: decided by `headway_analysis.remedies`, durable here, done by the learner.

journal.py   decisions in the artifact store
driver.py    when a remedy is decided, and because of what
shown.py     remedies in status and MLflow
"""
