"""Pure functions over a run's records: measures, statistics and reports. No clock, no network, no process.

measures/     what an episode, a group, a task and a candidate scored
statistics/   how sure a number is
gate.py       whether a candidate may be promoted
"""
