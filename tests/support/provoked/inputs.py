"""Faults of rows, models, weights and prices: the jobs, and the files that are uploaded for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from provoked.provocation import ODD, Applied, Provocation, evaluation

LOST_STEP = 12
"""A step without a checkpoint."""


def lose_the_checkpoint(job: Applied) -> None:
    """Resume the suspended job at a step whose checkpoint does not exist."""
    uid = job.get()["metadata"]["uid"]
    folder = f"s3://headway/runs/{job.namespace}/{job.name}/{uid}"
    job.put(f"{folder}/latest.json", json.dumps({"step": LOST_STEP}).encode())
    job.patch({"spec": {"suspend": False}})


ODD_BOOK = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "odd-book"},
    "data": {"prices.yaml": "name: odd\nentries:\n- since: 2026-01-01\n  prices: {sample: -1}\n"},
}
PROVOKED: dict[str, Provocation] = {
    "no-price-book": Provocation({"priceBook": "no-such-book"}),
    "negative-price": Provocation({"priceBook": "odd-book"}, beside=[ODD_BOOK]),
    "small-budget": Provocation({"budget": {"tokens": {"sample": 1}}}),
    "no-dataset": Provocation({"data": {"train": {"uri": "s3://headway/quickstart/no-such-file.jsonl"}}}),
    "no-validation-rows": Provocation({"data": {"validation": {"uri": f"{ODD}/no-such-file.jsonl"}}}),
    "another-bucket": Provocation({"data": {"train": {"uri": "s3://no-such-bucket/train.jsonl"}}}),
    "other-format": Provocation({"data": {"train": {"format": "parquet"}}}),
    "broken-row": Provocation({"data": {"train": {"uri": f"{ODD}/broken.jsonl"}}}),
    "no-rows": Provocation({"data": {"train": {"uri": f"{ODD}/empty.jsonl"}}}),
    "no-prompt-column": Provocation({"data": {"train": {"promptColumn": "question"}}}),
    "no-task-column": Provocation({"data": {"train": {"taskColumn": "topic"}}}),
    "unknown-task": Provocation(
        {
            "data": {
                "train": {"uri": f"{ODD}/tasks.jsonl", "taskColumn": "task"},
                "taskWeights": {"returns": 2},
            }
        }
    ),
    "held-out-rows-trained": Provocation(
        {"data": {"validation": {"uri": "s3://headway/quickstart/train.jsonl"}}}
    ),
    "too-few-rows": Provocation(
        {
            "data": {"train": {"uri": f"{ODD}/tasks.jsonl"}},
            "algorithm": {"batchSize": 8},
            "schedule": {"maxEpochs": 1},
        }
    ),
    "no-model": Provocation({"model": {"base": "s3://headway/quickstart/no-such-model"}}),
    "half-a-model": Provocation({"model": {"base": f"{ODD}/no-config"}}),
    "garbled-configuration": Provocation({"model": {"base": f"{ODD}/garbled-config"}}),
    "no-chat-template": Provocation({"model": {"base": f"{ODD}/no-template"}}),
    "no-calls-read": Provocation({"model": {"base": f"{ODD}/no-calls"}}),
    "no-results-taken": Provocation(
        {"model": {"base": f"{ODD}/no-results"}, "agent": {"builtin": {"toolCallParser": "qwen-coder"}}}
    ),
    "beyond-the-model": Provocation({"model": {"contextLength": 1000000}}),
    "no-such-module": Provocation({"model": {"lora": {"targets": ["w_pack"]}}}),
    "no-room-for-turns": Provocation(
        {
            "model": {"contextLength": 400},
            "rollout": {"sampling": {"maxTokens": 64}},
            "agent": {"builtin": {"maxTurns": 6}},
        }
    ),
    "hub-out-of-reach": Provocation({"model": {"base": "hf://acme/no-such-model"}}),
    "no-weights-to-start-from": Provocation({"model": {"warmStart": {"uri": f"{ODD}/no-such-weights"}}}),
    "other-rank": Provocation({"model": {"warmStart": {"uri": f"{ODD}/adapter-rank"}}}),
    "adapter-of-another-model": Provocation({"model": {"warmStart": {"uri": f"{ODD}/adapter-base"}}}),
    "no-job-to-start-from": Provocation({"model": {"warmStart": {"job": "absent"}}}),
    "no-candidate": evaluation({"candidates": [{"name": "tuned", "checkpoint": {"job": "absent"}}]}),
    "spoilt-weights": Provocation({"model": {"base": f"{ODD}/spoilt-weights"}}),
    "layer-left-out": Provocation({"model": {"base": f"{ODD}/more-layers"}}),
    "weights-of-another-model": Provocation({"model": {"base": f"{ODD}/other-weights"}}, trains=True),
    "lost-checkpoint": Provocation({"suspend": True}, then=lose_the_checkpoint, trains=True),
}
LEFT_OUT = {
    "no-config": ("config.json",),
    "no-template": ("chat_template.jinja",),
}
TEMPLATES = {
    "no-calls": "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}",
    "no-results": "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no such role') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}",
}
"""Model -> its chat template."""
HALVED = {"garbled-config": "config.json", "spoilt-weights": "model.safetensors"}


def upload(bucket: Any, folder: Path) -> None:
    """Upload all files that these jobs name, except for those that must be missing."""
    model = folder / "model"
    bucket.download("s3://headway/quickstart/model", model)
    odd = folder / "odd"
    for name, files in LEFT_OUT.items():
        shutil.copytree(model, odd / name, ignore=shutil.ignore_patterns(*files))
    for name, template in TEMPLATES.items():
        shutil.copytree(model, odd / name)
        (odd / name / "chat_template.jinja").write_text(template)
    for name, file in HALVED.items():
        shutil.copytree(model, odd / name)
        whole = (model / file).read_bytes()
        (odd / name / file).write_bytes(whole[: len(whole) // 2])
    described_as(model, odd / "other-weights", "intermediate_size", 2)
    described_as(model, odd / "more-layers", "num_hidden_layers", 2)
    _adapters(odd)
    _rows(odd)
    bucket.upload(odd, "odd")


def described_as(model: Path, copy: Path, size: str, times: int) -> None:
    """Copy a model, and multiply `size` in its configuration by `times`, so that its weights do not fit."""
    shutil.copytree(model, copy)
    config = json.loads((model / "config.json").read_text())
    config[size] *= times
    (copy / "config.json").write_text(json.dumps(config))


def _adapters(odd: Path) -> None:
    base = "s3://headway/quickstart/model"
    adapter = {"peft_type": "LORA", "base_model_name_or_path": base, "r": 16, "lora_alpha": 32}
    for name, changes in {
        "adapter-rank": {"r": 8, "lora_alpha": 16},
        "adapter-base": {"base_model_name_or_path": "acme/another-model"},
    }.items():
        (odd / name).mkdir()
        (odd / name / "adapter_config.json").write_text(json.dumps(adapter | changes))


def _rows(odd: Path) -> None:
    row = {"prompt": "Handle case bold-bison.", "case_id": "bold-bison"}
    lines = [json.dumps(row | {"case_id": name, "task": "refunds"}) for name in ("bold-bison", "calm-crane")]
    (odd / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    (odd / "broken.jsonl").write_text("\n".join([*lines, '{"prompt": "Handle']) + "\n")
    (odd / "empty.jsonl").write_text("")
