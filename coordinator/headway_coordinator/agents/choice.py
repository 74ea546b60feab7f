"""Makes the agent that the spec names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from headway_api import names
from headway_api.config import EvalConfig, JobConfig
from headway_api.records import Purpose
from headway_api.rows import prompt_of
from headway_api.spec import suite as suites
from headway_api.spec.agent import HttpAgent as HttpSpec
from headway_coordinator.agents.agent import Agent
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.agents.http import HttpAgent
from headway_coordinator.agents.remote import RemoteAgentHost
from headway_coordinator.agents.sandboxed import SandboxedAgent
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend
from headway_coordinator.resolving import hosts_file


@dataclass(frozen=True)
class GatewayAddresses:
    """The addresses at which agents call this process's gateway."""

    service: str
    """The gateway's base URL through the coordinator's Service, for agents that resolve names."""
    pod: str
    """The gateway's base URL with the pod's own address, for sandboxes, which do not resolve names."""


Job = JobConfig | EvalConfig
"""Either kind of job. Both specs have an agent, a range of rewards and a deadline for episodes."""


def addresses_of(job: Job, pod_ip: str, port: int = names.PORT_GATEWAY) -> GatewayAddresses:
    """The gateway's addresses."""
    host = f"[{pod_ip}]" if ":" in pod_ip else pod_ip
    service = names.service_host(job.stem, names.COORDINATOR, job.namespace)
    if hosts_file() is not None:  # agents outside the job do not read the hosts file
        service = host
    return GatewayAddresses(f"http://{service}:{port}", f"http://{host}:{port}")


def agent_of(
    job: Job, backend: Backend, server: GatewayServer, at: GatewayAddresses, http: aiohttp.ClientSession
) -> Agent:
    """The job's agent. `backend` answers its turns; an evaluation has a backend for each candidate."""
    spec = job.spec.agent
    if spec.http is not None:
        host = _host(job, backend, server, spec.http.callback_url or at.service)
        return HttpAgent(
            http, host, agent_url(job, spec.http), spec.http.idle_seconds, spec.http.reports_reward
        )
    if spec.sandboxed is not None:
        return SandboxedAgent(_host(job, backend, server, at.pod), spec.sandboxed.command)
    loop = spec.effective_builtin
    return Builtin(backend.chat, loop.max_turns, loop.system_prompt)


def suite_agent(job: EvalConfig, backend: Backend, server: GatewayServer, at: GatewayAddresses) -> Agent:
    """The agent for samples of a suite, whatever the job's own agent is."""
    host = replace(
        _host(job, backend, server, at.pod), reward_range=suites.BOUNDS, prompt=lambda purpose, row: ""
    )
    return SandboxedAgent(host, suites.PROGRAM)


def agent_url(job: Job, spec: HttpSpec) -> str:
    """The URL to which the prompt is posted."""
    if spec.service is not None:
        service = spec.service
        return f"http://{service.name}.{job.namespace}.svc:{service.port}{service.path}"
    return str(spec.url)


def job_arn(job: Job) -> str:
    """The job's name in the form that MTRL's clients expect."""
    return f"arn:headway:{job.kind.lower()}::{job.namespace}:{job.name}/{job.uid}"


def _host(job: Job, backend: Backend, server: GatewayServer, base_url: str) -> RemoteAgentHost:
    low, high = job.spec.reward.range
    return RemoteAgentHost(
        server=server,
        backend=backend,
        base_url=base_url,
        job_arn=job_arn(job),
        reward_range=(low, high),
        seconds=job.spec.rollout.timeout_seconds,
        prompt=_prompts(job),
        lenient=job.spec.agent.lenient,
    )


def _prompts(job: Job) -> Callable[[Purpose, dict[str, Any]], str]:
    if isinstance(job, EvalConfig):
        column = job.spec.data.prompt_column
        return lambda purpose, row: prompt_of(row, column)
    data = job.spec.data

    def prompt(purpose: Purpose, row: dict[str, Any]) -> str:
        splits = {
            Purpose.TRAIN: data.train,
            Purpose.VALIDATION: data.validation,
            Purpose.EVALUATION: data.test,
            Purpose.PREFLIGHT: data.train,
        }
        dataset = splits[purpose]
        return prompt_of(row, dataset.prompt_column if dataset else None)

    return prompt
