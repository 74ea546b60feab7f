"""Trains a step of a run again from the run's stored files, without a coordinator and without servers.

__main__     chooses the starting point, and starts as many ranks as trained the step
context      the folder, store and job of the replay's processes
plan         chooses the checkpoint, the steps and the batches; pure
overlay      reads from the run's folder, and writes to the replay's own folder
rank         runs one rank of the learner, step after step
comparison   compares the weights with those that the run published
"""
