"""Faults of the infrastructure: store, network, credentials, quotas and nodes."""

from __future__ import annotations

from headway_analysis.faults.definition import Fault, FaultKind, Stage, in_preflight, retried


def pods_wait(
    name: str,
    kind: FaultKind,
    reason: str,
    wrong: str,
    says: str,
    advice: str = "",
    *,
    state: str = "Pending",
    condition: str = "Progressing",
    event: str = "",
) -> Fault:
    """A fault that keeps pods from starting. It may pass, so the job waits until its deadline.

    `event` is the event's reason, if this is not the same as the condition's.
    """
    return Fault(
        name,
        kind,
        Stage.RUN,
        wrong,
        says,
        advice,
        state=state,
        reason=reason,
        condition=condition,
        event=event or reason,
    )


FAULTS: tuple[Fault, ...] = (
    in_preflight(
        "no-bucket",
        FaultKind.STORE,
        "BucketUnavailable",
        "The bucket for the results does not exist.",
        "spec.output.uri: bucket 'no-such-bucket' cannot be used: there is no such bucket; create it, or "
        "correct its name or spec.output.endpointUrl",
    ),
    in_preflight(
        "odd-bucket-name",
        FaultKind.STORE,
        "BucketUnavailable",
        "The bucket's name is not valid.",
        "spec.output.uri: bucket 'my bucket' cannot be used: no bucket can have this name (...); correct it",
        "Correct the bucket's name in `spec.output.uri`.",
    ),
    retried(
        "no-store-there",
        FaultKind.STORE,
        "ProcessFailed",
        "Nothing listens at the store's address.",
        "spec.output.uri: bucket 'headway' cannot be used: ... does not answer...; correct "
        "spec.output.endpointUrl, or let the pods of this job reach it",
        "Correct the address, or let pods reach it. The job tries again `spec.failurePolicy.maxRestarts` "
        "times.",
    ),
    retried(
        "no-store-of-that-name",
        FaultKind.NETWORK,
        "ProcessFailed",
        "The cluster's DNS does not know the store's name.",
        "spec.output.uri: bucket 'headway' cannot be used: ... does not answer...; correct "
        "spec.output.endpointUrl, or let the pods of this job reach it",
        "Write a Service's name with its namespace: `http://objects.team.svc:7070`.",
    ),
    retried(
        "store-behind-a-wall",
        FaultKind.NETWORK,
        "ProcessFailed",
        "A NetworkPolicy keeps the job's pods from the store.",
        "spec.output.uri: bucket 'headway' cannot be used: ... does not answer...; correct "
        "spec.output.endpointUrl, or let the pods of this job reach it",
        "Let pods with the label `headway.dev/job-name` reach the store.",
        seconds=60,
    ),
    in_preflight(
        "wrong-key",
        FaultKind.CREDENTIALS,
        "BucketUnavailable",
        "The store knows the key's name, but the secret is wrong.",
        "spec.output.uri: bucket 'headway' cannot be used: the store refuses the credentials...; correct "
        "the Secret of spec.output.secretRef or roleSecretRefs, or give its identity access",
    ),
    in_preflight(
        "no-keys",
        FaultKind.CREDENTIALS,
        "BucketUnavailable",
        "No Secret is named, and the pods have no identity of their own.",
        "spec.output.uri: bucket 'headway' cannot be used: no credentials; name a Secret with "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in spec.output.secretRef, or give the job's service "
        "account an identity",
    ),
    pods_wait(
        "no-secret",
        FaultKind.CREDENTIALS,
        "CreateFailed",
        "The Secret that the job names does not exist.",
        'spec.output.secretRef: pod ...: CreateContainerConfigError: secret "keys" not found; create '
        "Secret keys with that key, or name another one",
        "Create the Secret in the job's namespace, or name another one.",
    ),
    pods_wait(
        "no-account",
        FaultKind.CREDENTIALS,
        "CreateFailed",
        "The service account that the job names does not exist.",
        'spec.serviceAccountName: serviceaccount "trainer" not found; create it in the job\'s namespace, or '
        "name another one",
    ),
    pods_wait(
        "no-pods-left",
        FaultKind.QUOTA,
        "CreateFailed",
        "A ResourceQuota of the namespace allows no more pods.",
        "exceeded quota: few-pods, ...; free some of it, lower what the job asks for, or have the "
        "ResourceQuota raised",
    ),
    pods_wait(
        "no-memory-left",
        FaultKind.QUOTA,
        "CreateFailed",
        "A ResourceQuota leaves less memory than a learner asks for.",
        "spec.learner.resources: exceeded quota: little-memory, ...; free some of it, lower what the job "
        "asks for, or have the ResourceQuota raised",
        state="Starting",
    ),
    pods_wait(
        "sandboxes-beyond-quota",
        FaultKind.QUOTA,
        "CreateFailed",
        "A ResourceQuota leaves less than a sandbox asks for.",
        "spec.environment.sandbox.resources: exceeded quota: small-sandboxes, ...; free some of it, lower "
        "what the job asks for, or have the ResourceQuota raised",
        condition="SandboxesReady",
    ),
    pods_wait(
        "beyond-the-limit-range",
        FaultKind.QUOTA,
        "CreateFailed",
        "A LimitRange of the namespace allows a container less memory than learner and servers ask for.",
        "spec.learner.resources: maximum memory usage per Container is ...; lower what the job asks for, or "
        "have the LimitRange raised; spec.rollout.resources: ...",
        "Lower the memory that learner and rollout servers ask for, or have the LimitRange raised.",
        state="Starting",
    ),
    pods_wait(
        "no-such-node",
        FaultKind.NODE,
        "Unschedulable",
        "No node has the label that the learner's pod template asks for.",
        "spec.learner.podTemplate: ... node(s) didn't match Pod's node affinity/selector... Add such a "
        "node, or request what a node has",
        "Add such a node, or request what a node has.",
        state="Starting",
    ),
    pods_wait(
        "no-accelerator",
        FaultKind.NODE,
        "Unschedulable",
        "No node has an accelerator of the kind that the learner asks for.",
        "spec.learner.resources: ... Insufficient nvidia.com/gpu... Add such a node, or request what a "
        "node has",
        "Add such a node, or request what a node has.",
        state="Starting",
    ),
    pods_wait(
        "too-large-for-any-node",
        FaultKind.NODE,
        "Unschedulable",
        "No node has as much memory as the learner asks for.",
        "spec.learner.resources: ... Insufficient memory... Add such a node, or request what a node has",
        "Add such a node, or request what a node has.",
        state="Starting",
    ),
    pods_wait(
        "no-node-for-sandboxes",
        FaultKind.NODE,
        "Unschedulable",
        "No node has the label that the sandboxes' pod template asks for.",
        "spec.environment.sandbox.podTemplate: ... node(s) didn't match Pod's node affinity/selector... "
        "Add such a node, or request what a node has",
        "Add such a node, or request what a node has.",
        condition="SandboxesReady",
    ),
    pods_wait(
        "no-runtime-class",
        FaultKind.NODE,
        "CreateFailed",
        "The RuntimeClass of the sandboxes is not installed.",
        'spec.environment.sandbox.runtimeClassName: RuntimeClass "gvisor" not found; install it, or name '
        "another one",
        condition="SandboxesReady",
    ),
    pods_wait(
        "no-priority-class",
        FaultKind.NODE,
        "CreateFailed",
        "The priority class of the learner does not exist.",
        "spec.learner.podTemplate: no PriorityClass with name urgent was found; create it, or name "
        "another one",
        state="Starting",
    ),
    pods_wait(
        "name-taken",
        FaultKind.MANIFEST,
        "NameConflict",
        "An object that the job needs exists already, but belongs to another owner.",
        "ConfigMap ... exists and belongs to an unknown owner; delete it, or give the job another "
        "metadata.name",
        state="Stalled",
        condition="Stalled",
        event="Stalled",
    ),
)
