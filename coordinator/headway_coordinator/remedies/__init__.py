"""How a running job is changed: decided by `headway_analysis.remedies`, durable here, done by the learner.

journal.py   decisions in the artifact store
driver.py    when something is decided, and by what
shown.py     what status and MLflow say of it
"""
