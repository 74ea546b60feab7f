"""What an episode, a group, a task and a candidate scored.

episodes.py   over finished groups: success, pass@k and pass^k, means
tries.py      of one episode: success, tool calls, limits, whether an answer was emitted
catalogue.py  every measure of a candidate, of which tries it is a mean
candidate.py  a candidate's measures with intervals, over all and by task
figures.py    a training step's and a validation's figures under MTRL's names
"""
