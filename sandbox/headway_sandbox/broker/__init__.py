"""The broker: keeps a pool of started sandbox pods and hands each to one episode.

    pool.py     how many to make and to remove (pure)
    pods.py     what a sandbox pod looks like, and what its status means (pure)
    kube.py     the four calls of the Kubernetes API that are needed
    warm.py     the pool itself: makes, watches, probes and destroys pods
    leases.py   who holds which pod, until when
    service.py  HTTP

Nothing is written to the control plane for a lease: one create and one delete an episode, no more.
"""
