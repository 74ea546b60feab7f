"""Faults of manifests, which the API server or the operator refuses."""

from __future__ import annotations

from provoked.provocation import Provocation

PROVOKED: dict[str, Provocation] = {
    "unknown-field": Provocation({"algorithm": {"batchsize": 4}}),
    "wrong-type": Provocation({"algorithm": {"batchSize": "four"}}),
    "missing-field": Provocation({"environment": {"entrypoint": None}}),
    "below-the-least": Provocation({"algorithm": {"groupSize": 1}}),
    "not-one-of": Provocation({"readinessPolicy": "Sometime"}),
    "long-name": Provocation(name="a-name-of-forty-one-characters-is-too-long"),
    "learning-rate": Provocation({"optimizer": {"learningRate": 2}}),
    "lora-and-full": Provocation({"model": {"full": {}}}),
    "two-agents": Provocation({"agent": {"http": {"url": "http://agent.team.svc"}}}),
    "turns-beyond-context": Provocation({"model": {"contextLength": 128}}),
    "episode-outlives-sandbox": Provocation({"rollout": {"timeoutSeconds": 901}}),
    "reward-range-reversed": Provocation({"reward": {"range": [1, 0]}}),
    "budget-without-a-class": Provocation({"budget": {"tokens": {}}}),
    "changed-for-good": Provocation({"suspend": True}, edit={"seed": 1}),
    "changed-while-running": Provocation(
        {"suspend": False, "managedBy": "example.com/nobody"}, edit={"checkpoints": {"keepLast": 5}}
    ),
    "entrypoint-with-dot": Provocation({"environment": {"entrypoint": "environment.RefundDesk"}}),
    "agent-without-address": Provocation({"agent": {"builtin": None, "http": {"idleSeconds": 30}}}),
    "data-over-https": Provocation({"data": {"train": {"uri": "https://example.com/train.jsonl"}}}),
    "data-without-format": Provocation({"data": {"train": {"uri": "s3://headway/quickstart/train"}}}),
    "no-held-out-rows": Provocation({"data": {"validation": None}}),
    "weights-without-tasks": Provocation({"data": {"taskWeights": {"returns": 2}}}),
    "model-without-scheme": Provocation({"model": {"base": "Qwen/Qwen3-0.6B"}}),
    "model-with-branch": Provocation({"model": {"base": "hf://Qwen/Qwen3-0.6B@main"}}),
    "float16": Provocation({"model": {"dtype": "float16"}}),
    "results-elsewhere": Provocation({"output": {"uri": "gs://headway/runs"}}),
    "endpoint-without-scheme": Provocation({"output": {"endpointUrl": "objects:7070"}}),
    "tracking-in-a-file": Provocation({"tracking": {"mlflow": {"uri": "sqlite:///runs.db"}}}),
    "odd-quantity": Provocation({"rollout": {"resources": {"limits": {"memory": "4 GB"}}}}),
    "two-starts": Provocation({"model": {"warmStart": {"job": "first", "uri": "s3://headway/first"}}}),
    "above-the-cap": Provocation({"rollout": {"replicas": 65}}),
    "host-path": Provocation(
        {"learner": {"podTemplate": {"spec": {"volumes": [{"name": "data", "hostPath": {"path": "/data"}}]}}}}
    ),
    "secret-in-sandbox": Provocation(
        {"environment": {"sandbox": {"podTemplate": {"spec": {"containers": [{
            "name": "sandbox",
            "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "objects", "key": "key"}}}],
        }]}}}}}
    ),
    "account-of-a-role": Provocation(
        {"serviceAccountName": "account-of-a-role-broker"},
    ),
    "starts-from-itself": Provocation({"model": {"warmStart": {"job": "starts-from-itself"}}}),
}  # fmt: skip
