"""Trains a step of a run again from what the run has stored, without a coordinator and without servers.

__main__     chooses the starting point, and starts as many ranks as trained the step
context      folder, store and job of the replay's processes
plan         from which checkpoint, by which steps, with which batches: pure
overlay      the run's folder as the learner sees it; what the learner writes goes elsewhere
rank         one rank: the learner itself, step after step
comparison   whether the weights are those that the run published
"""
