"""The sandbox: the SDK for authors of environments, the server inside a sandbox pod, and the broker.

The SDK and the server use only the standard library; only `headway_sandbox.broker` needs more.
"""
