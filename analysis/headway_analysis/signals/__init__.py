"""Signs that training goes wrong, as pure functions over what is known of its steps.

history.py      the metrics of steps and validations, as they came
definition.py   what a signal is: its number, its threshold, what to change first
standing.py     from readings to a state, with hysteresis
evidence.py     the statistics that judges share
judges/         how each number is computed, and compared with its threshold
catalogue/      all signals, as people read of them
watch.py        a job's signals, step by step
page.py         what documentation, runbooks and the chart say of them
"""
