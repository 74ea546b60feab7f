"""Estimates usage, time and cost of a whole job from its spec, data and episodes. Pure.

amounts.py      a low, a likely and a high value
plan.py         how many episodes of each kind a job plays
limits.py       what an episode may use, from limits and prompts alone
measured.py     what measured episodes used, and how much their groups differ
tally.py        what episodes of a running job used, from the ledger's segments
whole.py        a training job's whole usage and cost
candidates.py   an evaluation's whole usage and cost, from what is left of each candidate
"""
