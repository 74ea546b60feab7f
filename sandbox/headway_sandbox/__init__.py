"""The sandbox: the SDK an environment's author uses, the server inside a sandbox pod, and the broker.

The SDK and the server use the standard library alone; only `headway_sandbox.broker` needs more.
"""
