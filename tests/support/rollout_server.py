"""The real rollout server with a `file://` store, on free ports, and functions that publish weights for it.

with RolloutServer(tmp_path, base, model={"lora": {"rank": 8, "alpha": 16}}) as server:
    server.wait_ready()
    state = server.post(publish_adapter(store, model, version, seed=1))
    server.generate("policy-0.1", [5, 6, 7], max_tokens=8)
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ports import free_port
from role_keys import TO_JUDGE, TO_ROLLOUT, written

from headway_api import names
from headway_api.config import EvalConfig, JobConfig
from headway_api.model_names import POLICY
from headway_api.records import Canary, PolicyVersion, WeightsManifest, WeightsState
from headway_api.store import digest

CANARY_TOKENS = list(range(9, 60))
TOLERANCE = 1e-3


def version(step: int, incarnation: int = 0) -> PolicyVersion:
    return PolicyVersion(incarnation=incarnation, step=step)


def job_config(folder: Path, base: Path | str, **spec: Any) -> JobConfig:
    """A job whose data are in folders. `base` is a folder or a URI, `spec` replaces blocks of the spec."""
    uri = base if isinstance(base, str) else f"file://{base}"
    model_block = {"base": uri, "dtype": "float32", "contextLength": 1024} | spec.pop("model", {})
    content = {
        "model": model_block,
        "data": {"train": {"uri": f"file://{folder}/train.jsonl"}},
        "environment": {"image": "environment", "entrypoint": "environment:Environment"},
        "evaluation": {"everySteps": 0, "atStart": False},
        "preflight": {"episodes": 0},
        "output": {"uri": f"file://{folder}/store"},
        "rollout": {"sampling": {"maxTokens": 32}, "maxConcurrency": 16},
        "agent": {"builtin": {"maxTurns": 4}},
    } | spec
    return JobConfig.model_validate({"name": "job", "namespace": "tests", "uid": "uid", "spec": content})


def eval_config(folder: Path, base: Path, ranks: dict[str, int | None]) -> EvalConfig:
    """An evaluation whose data are in folders. Its candidates share `base` and one set of servers. `ranks`:
    name of a candidate -> rank of its adapter, None for the base model itself."""
    uri = f"file://{base}"
    spec = {
        "candidates": [{"name": name, "model": {"base": "s3://bucket/model"}} for name in ranks],
        "data": {"uri": f"file://{folder}/rows.jsonl"},
        "environment": {"image": "environment", "entrypoint": "environment:Environment"},
        "output": {"uri": f"file://{folder}/store"},
        "rollout": {"maxConcurrency": 16},
    }
    how = {"base": uri, "dtype": "float32", "contextLength": 1024, "serverSet": 0}
    candidates = [
        {"name": name, "kind": "Adapter" if rank else "Model", "loraRank": rank} | how
        for name, rank in ranks.items()
    ]
    content = {"name": "job", "namespace": "tests", "uid": "uid", "spec": spec, "candidates": candidates}
    return EvalConfig.model_validate(content)


class RolloutServer:
    """The process `python -m headway_rollout`, which ends with all its children when the block ends."""

    def __init__(
        self,
        folder: Path,
        base: Path | str,
        evaluation: EvalConfig | None = None,
        /,
        *,
        judge: str | None = None,
        **spec: Any,
    ) -> None:
        """Start a server of a training job with the model `base`, of the first server set of `evaluation`, or
        of the judge `judge`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.config = evaluation or job_config(folder, base, **spec)
        self.log = folder / "server.log"
        self.engine_port, self.weights_port, self.metrics_port = free_port(), free_port(), free_port()
        (folder / "job.json").write_text(self.config.model_dump_json(by_alias=True))
        environment = os.environ | {
            names.ENV_CONFIG: str(folder / "job.json"),
            names.ENV_KEYS: str(written(folder, names.JUDGE if judge else names.ROLLOUT)),
            names.ENV_CACHE: str(folder / "cache"),
            names.ENV_SERVER_SET: "0",
            "HEADWAY_BIND_ADDRESS": "127.0.0.1",
            "HEADWAY_ENGINE_PORT": str(self.engine_port),
            "HEADWAY_WEIGHTS_PORT": str(self.weights_port),
            "HEADWAY_METRICS_PORT": str(self.metrics_port),
            "OMP_NUM_THREADS": "1",
            "VLLM_CACHE_ROOT": str(Path(tempfile.gettempdir()) / "headway-tests-vllm"),
        }
        if judge is not None:
            environment[names.ENV_JUDGE] = judge
        self.token = TO_JUDGE if judge else TO_ROLLOUT
        self.cache = folder / "cache"
        self._stream = self.log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headway_rollout"],
            env=environment,
            stdout=self._stream,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)
        self._stream.close()

    @property
    def url(self) -> str:
        """Base URL of vLLM."""
        return f"http://127.0.0.1:{self.engine_port}"

    @property
    def agent_url(self) -> str:
        """Base URL of the weight agent."""
        return f"http://127.0.0.1:{self.weights_port}"

    @property
    def metrics_url(self) -> str:
        """Base URL of the port for scrapers."""
        return f"http://127.0.0.1:{self.metrics_port}"

    def tail(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The server's log events called `name`."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if entry["event"] == name]

    def engine_processes(self) -> list[int]:
        """Living processes of the engine's process group."""
        [started] = self.events("engine starting")
        return group_members(started["pid"])

    def front_process(self) -> int:
        """Process id of vLLM's API server. It is the oldest child of the guard, which leads the group and
        adopts orphans."""
        group = self.events("engine starting")[0]["pid"]
        return min(pid for pid in self.engine_processes() if pid != group and _parent_of(pid) == group)

    def core_process(self) -> int:
        """Process id of vLLM's EngineCore."""
        title = b"VLLM::EngineCore"
        [found] = [
            pid
            for pid in self.engine_processes()
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title)
        ]
        return found

    def wait_ready(self, seconds: float = 600) -> float:
        """Wait until `/readyz` answers 200; returns the seconds that it took."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.tail()}")
            if self.status("/readyz") == 200:
                return time.monotonic() - started
            time.sleep(0.2)
        raise AssertionError(f"not ready within {seconds} s:\n{self.tail()}")

    def status(self, path: str) -> int:
        """HTTP status of a GET to the weight agent; 0 if nobody listens."""
        try:
            return int(request("GET", self.agent_url + path)[0])
        except (urllib.error.URLError, ConnectionError):
            return 0

    def post(self, manifest: WeightsManifest, slot: str = POLICY) -> WeightsState:
        return self._agent("POST", slot, manifest.model_dump_json())

    def state(self, slot: str = POLICY) -> WeightsState:
        return self._agent("GET", slot)

    def _agent(self, method: str, slot: str, body: str | None = None) -> WeightsState:
        code, text = request(method, f"{self.agent_url}/v1/weights?slot={slot}", body, TO_ROLLOUT)
        assert code == 200, text
        return WeightsState.model_validate_json(text)

    def generate(self, model: str, tokens: list[int], **sampling: Any) -> dict[str, Any]:
        """Request `/inference/v1/generate`; returns the answer, and fails unless its status is 200."""
        params = {"temperature": 1.0, "logprobs": 0, "max_tokens": 8} | sampling
        body = {"model": model, "token_ids": tokens, "sampling_params": params}
        code, text = request("POST", f"{self.url}/inference/v1/generate", json.dumps(body), TO_ROLLOUT)
        assert code == 200, text
        answer: dict[str, Any] = json.loads(text)
        return answer

    def metrics(self) -> str:
        """vLLM's own metrics, as text."""
        return request("GET", f"{self.url}/metrics", token=self.token)[1]

    def spent_on_requests(self) -> list[float]:
        """Number of prompt tokens and of sampled tokens, by vLLM's own counters, without heartbeats.

        A heartbeat has one prompt token and one sampled token. The weight agent sends heartbeats to an idle
        vLLM.
        """
        shown = self.metrics()
        probes, *totals = (
            sum(map(float, re.findall(rf"^vllm:{series} (\S+)$", shown, re.MULTILINE)))
            for series in (
                r'request_prompt_tokens_bucket{.*le="1\.0".*}',
                "prompt_tokens_total{.*}",
                "generation_tokens_total{.*}",
            )
        )
        return [total - probes for total in totals]

    def score(self, model: str, tokens: list[int]) -> list[float]:
        """vLLM's log-probability of each token except the first, with one request a token."""
        found = []
        for at in range(1, len(tokens)):
            answer = self.generate(
                model, tokens[:at], max_tokens=1, logprobs=2, logprob_token_ids=[tokens[at], tokens[at]]
            )
            entries = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            found += [entry["logprob"] for entry in entries if entry["token_id"] == tokens[at]]
        return found


def request(method: str, url: str, body: str | None = None, token: str | None = None) -> tuple[int, str]:
    """Status and text of an answer, whatever the status."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    asked = urllib.request.Request(url, body.encode() if body is not None else None, headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def group_members(group: int) -> list[int]:
    """Living processes of a process group; zombies do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def score(model: Any, tokens: list[int]) -> list[float]:
    """Log-probability of each token except the first, by a plain forward pass."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits.float()
    table = torch.log_softmax(logits, -1)[0, :-1]
    scored: list[float] = table.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    return scored


def _manifest(folder: Path, at: PolicyVersion, kind: str, logprobs: list[float]) -> WeightsManifest:
    return WeightsManifest.model_validate(
        {
            "version": at,
            "kind": kind,
            "uri": f"file://{folder}",
            "files": [
                digest(path) for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors")
            ],
            "canary": Canary(tokens=CANARY_TOKENS, logprobs=logprobs, tolerance=TOLERANCE),
        }
    )


def publish_adapter(
    store: Path, base: Path, at: PolicyVersion, *, seed: int, rank: int = 8, scale: float = 0.2
) -> WeightsManifest:
    """Write a random adapter with an effect to `store`; returns its manifest."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, scale)
    folder = store / "weights" / f"{at.incarnation}-{at.step:06d}"
    model.save_pretrained(str(folder))
    return _manifest(folder, at, "lora", score(model.eval(), CANARY_TOKENS))


def publish_full(store: Path, at: PolicyVersion, *, seed: int, tied: bool) -> WeightsManifest:
    """Write a whole random model to `store`; returns its manifest."""
    import torch
    from tiny_model import write_model
    from transformers import AutoModelForCausalLM

    folder = write_model(store / "weights" / f"{at.incarnation}-{at.step:06d}", seed=seed, tied=tied)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return _manifest(folder, at, "full", score(model.eval(), CANARY_TOKENS))
