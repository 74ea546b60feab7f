"""Runs a job without a cluster: the operator's plan, carried out with processes instead of pods.

engine      plans and carries out, again and again, until the job has ended
machine     the objects of the plan, and the pods that they ask for
workloads   what a Job or a Deployment asks for: pure
pod         one pod as a process
manifest    the job as a person wrote it, and what is changed to run it here
"""
