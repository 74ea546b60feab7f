"""What an episode, a group, a task and a candidate scored.

episodes.py    over finished groups: success, pass@k and pass^k, means
metrics.py     a training step's and a validation's metrics under MTRL's names
tries.py       one try of one candidate at one row: a line of results.parquet
catalogue.py   every measure of a candidate: its name and what a try adds to it
candidate.py   a candidate's measures with intervals, by task, and differences from a baseline
"""
