"""Signs that training goes wrong, as pure functions over the metrics of a job's steps.

history.py      the metrics of steps and validations that are known so far
definition.py   what a signal is: its number, its threshold, what to change first
standing.py     turns a signal's readings into a state, with hysteresis
evidence.py     the statistics that judges share
judges/         how each number is computed, and compared with its threshold
catalogue/      all signals, with their descriptions for people
watch.py        a job's signals, step by step
page.py         writes the documentation, the runbooks and the chart's alerts from the signals
"""
