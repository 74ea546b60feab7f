"""Signs that training goes wrong, as pure functions over what is known of its steps.

history.py      the figures of steps and validations, as they came
definition.py   what a signal is: its number, its threshold, what to change first
standing.py     from readings to a state, with hysteresis
evidence.py     the statistics that judges share
learning.py     signals of reward and validation
stability.py    signals of the policy's update
conduct.py      signals of what the agent does
catalogue.py    all of them
watch.py        a job's signals, step by step
"""
