"""Whole jobs in one process, to compare each one's cost with the estimate that its preflight made.

jobs.py      six jobs that differ in what changes a bill.
served.py    rollout servers: the demo's tiny model behind vLLM's route, or a simulated model.
boxes.py     sandboxes: the demo's desk in this process, behind the sandbox's and the broker's routes.
learner.py   the product's learner, behind the coordinator's API.
run.py       one job, from preflight to report.
page.py      bench/results/estimate.md.
"""
