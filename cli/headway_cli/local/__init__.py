"""Runs a job without a cluster: carries out the operator's plan with processes instead of pods.

engine      makes a plan and carries it out, again and again, until the job has ended
machine     keeps the objects of the plan, and starts and ends their pods
workloads   which pods a Job or a Deployment asks for: pure
pod         runs one pod as a process
manifest    reads the job as a person wrote it, and changes it so that it can run here
run         opens a job's folder, and follows the job
"""
