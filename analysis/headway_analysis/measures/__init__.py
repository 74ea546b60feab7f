"""What an episode, a group, a task and a candidate scored.

episodes.py   over finished groups: success, pass@k and pass^k, means
conduct.py    of one episode: tool calls, limits, whether an answer was emitted
figures.py    a training step's and a validation's figures under MTRL's names
"""
