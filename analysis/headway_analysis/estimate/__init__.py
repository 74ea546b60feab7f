"""Estimates usage, time and cost of a whole job from its spec, data and episodes. Pure.

amounts.py      a low, a likely and a high value
plan.py         how many episodes of each kind a job plays
limits.py       what an episode may use, from limits and prompts alone
measured.py     what episodes used, with their spread: from groups
tally.py        the same from the ledger's segments, while a job runs
whole.py        all of it together, and what it costs
candidates.py   the same of an evaluation: candidate by candidate, of what is left of each
"""
