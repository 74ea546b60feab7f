"""Chooses what to change in a job with a raised signal, as pure functions over its records.

catalogue.py    what each remedy changes, when it applies, which signals it is meant for
course.py       what was changed so far, and the result of each change
context.py      what is known of the job before its next step
measured.py     how well the job does: reward and validation, now and before
judgement.py    whether a watched remedy is kept
policy.py       which change to make next: automatically, or by a person's order
"""
