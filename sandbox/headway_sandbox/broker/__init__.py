"""The broker: keeps a pool of started sandbox pods and hands each to one episode.

    pool.py     how many pods to create and to remove (pure)
    pods.py     the manifest of a sandbox pod, and the meaning of its status (pure)
    kube.py     the four calls of the Kubernetes API that the broker needs
    warm.py     the pool itself: creates, watches, probes and destroys pods
    leases.py   which episode holds which pod, until when
    service.py  HTTP

A lease writes nothing to the control plane: an episode costs only one create and one delete.
"""
