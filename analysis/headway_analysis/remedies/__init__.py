"""What to change in a job that shows signs of collapse, as pure functions over its records.

catalogue.py    what each remedy changes, when it applies, which signs it is meant against
course.py       what was changed so far, and what became of each change
situation.py    what is known when the next step is to be made
measured.py     how the job does: reward and validation, now and before
judgement.py    whether a remedy stays, once it was watched
policy.py       what to do next, by itself or by a person's order
"""
