"""Writes the results of an evaluation.

table.py         results.parquet: a row for each candidate, dataset row and try
document.py      report.json: every measure with its interval
markdown.py      report.md: the contents of report.json for people
inspect_log.py   the episodes as logs of Inspect AI
inspect_messages.py  the messages of an episode in such a log
"""
