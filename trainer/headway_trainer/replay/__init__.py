"""Trains a step of a run again from what the run has stored, without a coordinator and without servers.

__main__     chooses from where, and starts as many ranks as trained the step
context      folder, store and job, as the replay's processes have them
plan         from which checkpoint, by which steps, of which batches: pure
overlay      the run's folder as the learner sees it: what it writes goes elsewhere
rank         one rank: the learner itself, step after step
comparison   whether the weights are those that the run published
"""
