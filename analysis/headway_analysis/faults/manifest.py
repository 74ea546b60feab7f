"""Faults of the manifest itself: unknown, missing or contradictory fields, and invalid values."""

from __future__ import annotations

from headway_analysis.faults.definition import Fault, FaultKind, at_apply, in_spec

FAULTS: tuple[Fault, ...] = (
    at_apply(
        "unknown-field",
        FaultKind.MANIFEST,
        "There is no field of this name at this place; often its spelling or indentation is wrong.",
        'unknown field "spec.algorithm.batchsize"',
        "`python -m headway_api.recipes job.yaml` names the right field.",
    ),
    at_apply(
        "wrong-type",
        FaultKind.MANIFEST,
        "A field has text where it needs a number, or a number where it needs text.",
        "spec.algorithm.batchSize: Invalid value: ...: spec.algorithm.batchSize in body must be of type "
        "integer",
        "Write a number without quotes, and text with quotes.",
    ),
    at_apply(
        "missing-field",
        FaultKind.MANIFEST,
        "A field that every job needs is missing.",
        "spec.environment.entrypoint: Required value",
        "Write the field; the [reference](reference/crds.md) says what it holds.",
    ),
    at_apply(
        "below-the-least",
        FaultKind.MANIFEST,
        "A number is below the field's minimum.",
        "spec.algorithm.groupSize in body should be greater than or equal to 2",
        "Write 2 or more: a group of one episode has nothing to compare.",
    ),
    at_apply(
        "not-one-of",
        FaultKind.MANIFEST,
        "A field has a value that is not one of its options.",
        'spec.readinessPolicy: Unsupported value: "Sometime": supported values: ...',
        "Write one of the supported values.",
    ),
    at_apply(
        "long-name",
        FaultKind.MANIFEST,
        "The job's name leaves no room for the names of its pods.",
        "at most 40 characters",
        "Shorten metadata.name.",
    ),
    at_apply(
        "learning-rate",
        FaultKind.MANIFEST,
        "The learning rate is far too high for any run.",
        "spec.optimizer.learningRate must be at most 0.01",
        "Begin with 4e-5 for an adapter, and a tenth of it for all weights.",
    ),
    at_apply(
        "lora-and-full",
        FaultKind.MANIFEST,
        "The job asks for an adapter and for all weights.",
        "spec.model takes lora or full, not both; remove one of them",
    ),
    at_apply(
        "two-agents",
        FaultKind.AGENT,
        "The job names two agents.",
        "spec.agent takes one of builtin, http and sandboxed; remove the others",
    ),
    at_apply(
        "turns-beyond-context",
        FaultKind.MANIFEST,
        "The turns do not fit the context, whatever the prompt is.",
        "exceeds spec.model.contextLength: lower maxTokens or maxTurns, or raise contextLength",
        "Lower `spec.rollout.sampling.maxTokens` or `maxTurns`, or raise `spec.model.contextLength`.",
    ),
    at_apply(
        "episode-outlives-sandbox",
        FaultKind.MANIFEST,
        "An episode may take longer than its sandbox lives.",
        "spec.rollout.timeoutSeconds must not be above spec.environment.sandbox.deadlineSeconds: an "
        "episode ends with its sandbox; lower the first, or raise the second",
        "Lower `spec.rollout.timeoutSeconds`, or raise `spec.environment.sandbox.deadlineSeconds`.",
    ),
    at_apply(
        "reward-range-reversed",
        FaultKind.MANIFEST,
        "The lowest reward is above the highest.",
        "spec.reward.range: the first number must be below the second",
        "Write the lowest reward first.",
    ),
    at_apply(
        "budget-without-a-class",
        FaultKind.MANIFEST,
        "The budget of tokens limits no class of usage.",
        "spec.budget.tokens names no class; write a limit for one of prefill, cachedPrefill, sample, train, "
        "discarded, evaluation, endpoint, judge, or remove it",
        "Write a limit for a class that the message lists, or remove `spec.budget.tokens`.",
    ),
    at_apply(
        "changed-for-good",
        FaultKind.MANIFEST,
        "The change is to a field that must stay as it was applied.",
        "spec.seed is immutable",
        "Delete the job and apply it again, or apply it under another name.",
    ),
    at_apply(
        "changed-while-running",
        FaultKind.MANIFEST,
        "The change is to a field that takes effect only when processes start.",
        "spec.checkpoints.keepLast may change only while the job is suspended; set spec.suspend: true first",
    ),
    at_apply(
        "entrypoint-with-dot",
        FaultKind.ENVIRONMENT,
        "The entrypoint names the class after a dot, as an import does.",
        "spec.environment.entrypoint must be module:Class, such as refunds_env:RefundEnvironment",
        "Write a colon before the class.",
    ),
    at_apply(
        "agent-without-address",
        FaultKind.AGENT,
        "The agent is a service without an address.",
        "spec.agent.http takes exactly one of url and service",
        "Name the agent's Service and port, or its address.",
    ),
    at_apply(
        "data-over-https",
        FaultKind.DATA,
        "The address of the rows is not an `s3://` address.",
        "the uri of a dataset must start with s3://",
        "Copy the file to a bucket, and write its `s3://` address.",
    ),
    at_apply(
        "data-without-format",
        FaultKind.DATA,
        "The file's name does not show its format.",
        "a dataset whose uri does not end in .parquet, .jsonl, .json or .csv needs format",
        "Set `format` beside `uri`.",
    ),
    at_apply(
        "no-held-out-rows",
        FaultKind.DATA,
        "The job has validations, but no held-out rows.",
        "spec.data.validation is needed to evaluate; give it, or switch evaluation off with "
        "spec.evaluation.everySteps: 0 and atStart: false",
        "Write `spec.data.validation`, or write `everySteps: 0` and `atStart: false` in `spec.evaluation`.",
    ),
    at_apply(
        "weights-without-tasks",
        FaultKind.DATA,
        "Tasks have weights, but no column names the task of a row.",
        "spec.data.taskWeights needs spec.data.train.taskColumn, which names the task of a row",
        "Write `spec.data.train.taskColumn`, or remove `spec.data.taskWeights`.",
    ),
    at_apply(
        "model-without-scheme",
        FaultKind.MODEL,
        "The base model's address has no scheme.",
        "spec.model.base must start with hf:// or s3://",
        "Write `hf://` before the name of a model on the Hugging Face hub.",
    ),
    at_apply(
        "model-with-branch",
        FaultKind.MODEL,
        "The name of a model on the Hugging Face hub contains a branch.",
        "spec.model.base: a model on the hub is hf://ORGANIZATION/NAME of letters, digits, -, _ and . "
        "alone; correct the name, and put a branch, tag or commit into revision",
    ),
    at_apply(
        "float16",
        FaultKind.MODEL,
        "The job trains in float16.",
        'spec.model.dtype: Unsupported value: "float16": supported values: "bfloat16", "float32"',
        "Write bfloat16, which has the range of float32, or float32.",
    ),
    at_apply(
        "results-elsewhere",
        FaultKind.STORE,
        "The address for results is not one of an S3 store.",
        "spec.output.uri must start with s3://",
        "Write an `s3://` address. If the store is not Amazon's, name it in `spec.output.endpointUrl`.",
    ),
    at_apply(
        "endpoint-without-scheme",
        FaultKind.STORE,
        "The store's address has no scheme.",
        "spec.output.endpointUrl must start with http:// or https://",
        "Write the scheme before the address.",
    ),
    at_apply(
        "tracking-in-a-file",
        FaultKind.NETWORK,
        "MLflow's address is a file, but pods share no files.",
        "spec.tracking.mlflow.uri must start with http:// or https://",
        "Run an MLflow server in the cluster, and write its address.",
    ),
    at_apply(
        "odd-quantity",
        FaultKind.QUOTA,
        "A quantity is not in Kubernetes' notation.",
        "spec.rollout.resources.limits.memory in body should match",
        "Write whole numbers with a unit of Kubernetes: `4Gi`, `500m`.",
    ),
    at_apply(
        "two-starts",
        FaultKind.WEIGHTS,
        "The job is to start both from another job and from a folder.",
        "spec.model.warmStart takes exactly one of job and uri",
        "Remove `job` or `uri`.",
    ),
    in_spec(
        "above-the-cap",
        FaultKind.QUOTA,
        "The job asks for more rollout servers than the platform allows one job.",
        "spec.rollout.replicas: ... is above this platform's limit of ...; lower it, or ask an "
        "administrator to raise the limit",
        "Lower `spec.rollout.replicas`, or have the limit raised: limits are `caps` in the chart's values.",
    ),
    in_spec(
        "host-path",
        FaultKind.NODE,
        "A pod template mounts a folder of the node (`hostPath`).",
        "spec.learner.podTemplate.spec.volumes[0].hostPath may not be used in a job; ask for it in the "
        "operator's roleTemplates",
        "Remove the volume. An administrator may add it to `roleTemplates` in the chart's values.",
    ),
    in_spec(
        "secret-in-sandbox",
        FaultKind.CREDENTIALS,
        "A sandbox would hold a key of a Secret.",
        "valueFrom.secretKeyRef may not be used in a sandbox, which holds no credentials; give a value, or "
        "take it from a configMap",
        "Remove it. A value that is not a secret may be written here, or taken from a ConfigMap.",
    ),
    in_spec(
        "account-of-a-role",
        FaultKind.CREDENTIALS,
        "The job names a service account that the operator creates for its own roles.",
        "spec.serviceAccountName: the operator creates ... for its own roles; name another account",
    ),
    in_spec(
        "starts-from-itself",
        FaultKind.WEIGHTS,
        "The job starts from its own weights.",
        "spec.model.warmStart.job: a job cannot start from itself; name another job, or give the uri of "
        "weights",
    ),
)
