"""A real single-node Kubernetes on this machine, for development and tests.

The upstream control plane, kubelet and kube-proxy run as plain host processes
above Debian's containerd; nothing is mocked. It is *not* hardened, replicated
or durable, and must never hold anything that cannot be thrown away.
"""
