"""A real single-node Kubernetes cluster on this machine, for development and tests.

The upstream control plane, kubelet and kube-proxy run as plain host processes on top of Debian's containerd.
Nothing is mocked. The cluster is *not* hardened, replicated or durable. Never store anything in it that you
cannot lose.
"""
