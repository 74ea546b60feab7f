"""A Prometheus that scrapes a whole job by the chart's PodMonitors, and evaluates the chart's rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from chart import render, rules_at_once
from episodes import a_group
from observed_cluster import evaluating
from prometheus_server import Pod, Prometheus, exposing, prometheus_server, scrape_configs
from whole_job import JOB, NAMESPACE, SERVERS, Shown, whole_job

from headway_analysis.comparison import compare_all
from headway_analysis.measures.tries import Rules, TryPlace, tries_of
from headway_api.document import Json
from headway_coordinator.evaluation import projections
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.metrics.prometheus import Exporter
from headway_coordinator.projections import bill

HOME = "headway-system"
SCRAPE_SECONDS = 1


@dataclass(frozen=True)
class Monitored:
    """A job, and the Prometheus that scrapes it."""

    job: Shown
    prometheus: Prometheus


@contextmanager
def monitored_job(
    folder: Path, *, steps: int, pace: float, scrape_seconds: int = SCRAPE_SECONDS
) -> Iterator[Monitored]:
    """Run a job and its Prometheus until the block ends. A scrape may take a whole interval."""
    values = _values(scrape_seconds)
    with ExitStack() as stack:
        job = stack.enter_context(whole_job(folder, steps=steps, pace=pace))
        pods = list(_pods(stack, job, values))
        configs = [
            config
            for monitor in render("podmonitor.yaml", values, namespace=HOME)
            for config in scrape_configs(monitor, pods)
        ]
        (home := folder / "prometheus").mkdir()
        yield Monitored(
            job, stack.enter_context(prometheus_server(home, configs, rules_at_once(values, HOME)))
        )


def _values(scrape_seconds: int) -> Json:
    """Values of the chart."""
    often = f"{scrape_seconds}s"
    return {
        "watchNamespaces": [NAMESPACE],
        "prometheusRule": {"enabled": True},
        "podMonitor": {"enabled": True, "interval": often, "scrapeTimeout": often},
    }


def _pods(stack: ExitStack, job: Shown, values: Json) -> Iterator[Pod]:
    templates = job.fleet.templates()
    yield Pod(NAMESPACE, f"{JOB}-coordinator-0", templates[f"{JOB}-coordinator"], job.coordinator)
    yield Pod(NAMESPACE, f"{JOB}-broker-0", templates[f"{JOB}-broker"], job.broker)
    for number in range(SERVERS):
        yield Pod(NAMESPACE, f"{JOB}-rollout-{number}", templates[f"{JOB}-rollout"], job.servers[number])
    (deployment,) = render("deployment.yaml", values, namespace=HOME)
    at = stack.enter_context(exposing(job.fleet.text))
    yield Pod(HOME, "operator-0", deployment["spec"]["template"], at)
    measuring = evaluating().objects["Job", f"{JOB}-eval-coordinator"]["spec"]["template"]
    at = stack.enter_context(exposing(_evaluation().text))
    yield Pod(NAMESPACE, f"{JOB}-eval-coordinator-0", measuring, at)


def _evaluation() -> Exporter:
    """Metrics of an evaluation's coordinator: two candidates on eight rows, and an empty bill."""
    rewards = {"base": (0, 0, 1, 0, 1, 0, 0, 1), "tuned": (1, 0, 1, 1, 1, 1, 0, 1)}
    tries = {
        name: [
            one
            for row, reward in enumerate(found)
            for one in tries_of(a_group(f"e-{name}-{row:06d}", [reward]), TryPlace(name, row), Rules())
        ]
        for name, found in rewards.items()
    }
    compared = compare_all(tries, [1], "base", None)
    state = EvalState({name: CandidateState(name) for name in tries}, rows=8)
    return Exporter(NAMESPACE, JOB, lambda: [*bill({}, 0.0), *projections.samples(compared, state)])
