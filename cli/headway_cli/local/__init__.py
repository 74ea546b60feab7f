"""Runs a job without a cluster: carries out the operator's plan with processes instead of pods.

engine      plans and carries out, again and again, until the job has ended
machine     the objects of the plan, and their pods
workloads   the pods that a Job or a Deployment asks for: pure
pod         one pod as a process
manifest    the job as a person wrote it, and the changes that let it run here
"""
