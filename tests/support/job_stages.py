"""Jobs at each stage of their life, as an API server would show them.

The operator's planner and the coordinator's own code write every status here, so none is made up. The names
of stages are those in the table of docs/gitops.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import finished_evaluation as measured
from observed_cluster import World, eval_job, evaluating, job, running, stamp
from raised import a_pause, verdict

from headway_analysis.comparison import Comparison, compare_all
from headway_analysis.measures.candidate import priced
from headway_api import names
from headway_api.conditions import Condition
from headway_api.config import Identity
from headway_api.document import Json
from headway_api.exits import PERMANENT
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_coordinator import signals
from headway_coordinator.evaluation import projections
from headway_coordinator.faults import Cause
from headway_coordinator.recurring import RecurringCause
from headway_operator.wire import UNREAD

Make = Callable[..., World]
"""Creates a running job, with these blocks in its spec."""
ROLES: Final = ("coordinator", "broker", "rollout", "learner")
ENOUGH, TOO_MUCH = "0.2", "0.99"
"""The minimum of a gate that the finished evaluation passes, and of a gate that it does not pass."""
FAILING: Final = RecurringCause(
    Cause(
        "JudgeFailed", "judge style: https://judge.team.svc does not answer", "spec.judges[0].endpoint.url"
    ),
    20,
)
"""A cause that ends one episode after another."""
WATCHED: Final[Json] = {
    "number": 1,
    "step": 12,
    "remedy": "OnPolicy",
    "signal": "RewardCollapsed",
    "action": "maxStepsOffPolicy 3 -> 0",
    "state": "Watching",
}
"""A remedy that is still being watched."""


def gate(minimum: str = ENOUGH) -> Json:
    """A gate for the candidate `tuned`."""
    return {"candidate": "tuned", "metric": "external_score", "minimum": minimum}


def gated(minimum: str = ENOUGH, **spec: Any) -> World:
    """A running evaluation with a gate, which the coordinator cannot judge yet."""
    names = [{"name": name, "model": {"base": "hf://Qwen/Qwen3-8B"}} for name in ("base", "tuned")]
    world = evaluating(candidates=names, gate=gate(minimum), **spec)
    coordinator_says(world, None)
    world.carry_out()
    return world


def judged(minimum: str) -> Comparison:
    """The comparison of the finished evaluation's candidates, with a gate of this minimum."""
    spec = RLEvalJobSpec.model_validate(
        measured.config().spec.model_dump(by_alias=True) | {"gate": gate(minimum)}
    )
    return compare_all(
        measured.tries(), measured.KS, "base", projections.gate_of(spec), priced(measured.BOOK)
    )


def coordinator_says(world: World, found: Comparison | None) -> str:
    """Write the coordinator's condition about the gate; returns its message. None: it cannot tell yet."""
    spec = RLEvalJobSpec.model_validate(world.body["spec"])
    others = [item for item in world.body["status"]["conditions"] if item["type"] != "GatePassed"]
    conditions = [item.as_object() for item in projections.gate_passed(spec, found, found is not None)]
    for item in conditions:
        item["lastTransitionTime"] = stamp(world.now)
    world.body["status"]["conditions"] = [*others, *conditions]
    return conditions[0]["message"] if conditions else ""


def complete(world: World) -> World:
    """Let the coordinator's Job complete."""
    if world.body["kind"] == "RLEvalJob":
        coordinator_says(world, judged(ENOUGH))
    world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    world.carry_out()
    return world


def refused_by_the_gate() -> World:
    """An evaluation whose gate has not passed."""
    world = gated(TOO_MUCH)
    message = coordinator_says(world, judged(TOO_MUCH))
    world.gave_up("coordinator", "GateNotPassed", message, "spec.gate")
    world.carry_out()
    return world


def candidate_failed() -> World:
    """An evaluation in which one candidate failed, although the gate's candidate has passed."""
    world = gated()
    coordinator_says(world, judged(ENOUGH))
    world.gave_up("coordinator", "CandidateFailed", "base: EndpointRefused: 401 Unauthorized")
    world.carry_out()
    return world


def suspending(world: World) -> World:
    """Suspend the job. Its pods are still ending."""
    world.body["spec"]["suspend"] = True
    world.carry_out()
    return world


def suspended(world: World) -> World:
    """No pod is left."""
    suspending(world).gone(*ROLES).carry_out()
    return world


def queued(world: World) -> World:
    """Let a queue, such as Kueue, suspend the coordinator's Job."""
    world.gone("coordinator")
    world.objects["Job", f"{world.stem}-coordinator"]["spec"]["suspend"] = True
    world.carry_out()
    return world


def unread(body: Json) -> World:
    """A job of which one block is out of bounds, so that the operator reads it without that block."""
    body["spec"].pop("environment")
    return seen(body | {UNREAD: "spec.environment.config: nested more than 32 levels deep"})


def resumed(world: World) -> World:
    """Suspend the job and resume it."""
    suspended(world).body["spec"]["suspend"] = False
    world.carry_out()
    return world


def pausing(world: World) -> World:
    """Let the coordinator pause the job. Its pods are still ending."""
    metadata = world.body["metadata"]
    identity = Identity(
        kind=world.body["kind"], **{key: metadata[key] for key in ("name", "namespace", "uid")}
    )
    world.body["status"] |= {"progress": {"step": 12}, "pause": a_pause(identity, world.now).as_object()}
    world.carry_out()
    return world


def paused(world: World) -> World:
    """No pod is left."""
    pausing(world).gone(*ROLES).carry_out()
    return world


def resumed_by(world: World, value: str | None) -> World:
    """Write the annotation by which a person resumes the job; None removes it."""
    annotations = world.body["metadata"].setdefault("annotations", {})
    annotations.pop(names.ANNOTATION_RESUME, None)
    if value is not None:
        annotations[names.ANNOTATION_RESUME] = value
    return world


def ended_pause(world: World) -> World:
    """Pause the job, and end the pause as a person does."""
    paused(world)
    resumed_by(world, world.body["status"]["pause"]["time"]).carry_out()
    return world


def paused_and_suspended(world: World) -> World:
    """Pause the job, and then suspend it too."""
    paused(world).body["spec"]["suspend"] = True
    world.carry_out()
    return world


def reported(world: World, *conditions: Condition, **status: Any) -> World:
    """Write conditions and other fields of the status that the coordinator owns."""
    written = {item.type for item in conditions}
    others = [item for item in world.body["status"]["conditions"] if item["type"] not in written]
    own = [item.as_object() | {"lastTransitionTime": stamp(world.now)} for item in conditions]
    world.body["status"] |= {"conditions": [*others, *own], **status}
    world.carry_out()
    return world


def in_preflight(state: str, world: World) -> World:
    """Set the state of the preflight."""
    return reported(world, preflight={"state": state, "checks": []})


def sampling(**spec: Any) -> World:
    """A job whose untrained model samples on one server, before there is a learner."""
    world = seen(job(**spec)).ready("coordinator", "broker")
    in_preflight("Sampling", world).ready("rollout").carry_out()
    return world


def episodes_fail(world: World) -> World:
    """Let the coordinator report a fault that ends episodes again and again."""
    if world.body["kind"] == "RLEvalJob":
        return reported(world, *projections.healthy([], [FAILING]))
    return reported(world, signals.healthy([], [FAILING]))


def started_again(world: World) -> World:
    """Remove the learner's pod of a running job, so that another one starts."""
    reported(world, progress={"step": 4}).gone("learner").carry_out()
    return world


def stalled(world: World) -> World:
    """Let the coordinator report that the job makes no progress."""
    world.body["status"].setdefault("progress", {"step": 1})["stalled"] = "no sandbox answers"
    world.carry_out()
    return world


def waiting() -> World:
    """An evaluation that waits for weights of a training job that does not exist."""
    world = World(eval_job(candidates=[{"name": "tuned", "checkpoint": {"job": "tuned-run"}}], gate=gate()))
    world.carry_out()
    return world


def seen(body: Json) -> World:
    """A job after the operator's first reconcile."""
    world = World(body)
    world.carry_out()
    return world


def starting(world: World) -> World:
    """Remove the pods of the rollout servers."""
    world.gone("rollout").carry_out()
    return world


def new(body: Json) -> World:
    """A job before the operator's first reconcile, with the defaults of the custom resource definition."""
    body["status"] = {"observedGeneration": -1}
    return World(body)


def edited(world: World) -> World:
    """Change the spec. The operator has not reconciled the job since."""
    world.body["metadata"]["generation"] += 1
    return world


def deleting(world: World) -> World:
    """Delete the job. Its pods are still ending, or somebody else's finalizer keeps it."""
    world.carry_out()
    world.deleted().carry_out()
    world.body["metadata"]["finalizers"] = world.body["metadata"]["finalizers"] or ["example.com/archive"]
    return world


def died(world: World) -> World:
    """Let the coordinator end with the exit code that no restart can help."""
    world.died("coordinator", PERMANENT)
    world.carry_out()
    return world


def _of_both(make: Make, plain: Callable[..., Json]) -> dict[str, Callable[[], World]]:
    return {
        "new, no operator has seen it": lambda: new(plain()),
        "accepted, the preflight is not over": lambda: seen(plain()),
        "the preflight runs": lambda: in_preflight("Running", seen(plain())),
        "pods start": lambda: starting(make()),
        "running, `Accepted`": lambda: make(readinessPolicy="Accepted"),
        "running, `Running`": lambda: make(readinessPolicy="Running"),
        "running, `Succeeded`": lambda: make(readinessPolicy="Succeeded"),
        "running, and episodes fail (a tool, a judge)": lambda: episodes_fail(make()),
        "spec edited, not yet seen": lambda: edited(make(readinessPolicy="Running")),
        "being suspended": lambda: suspending(make(readinessPolicy="Running")),
        "suspended, `Accepted`": lambda: suspended(make(readinessPolicy="Accepted")),
        "suspended, `Running`": lambda: suspended(make(readinessPolicy="Running")),
        "suspended, `Succeeded`": lambda: suspended(make(readinessPolicy="Succeeded")),
        "resumed": lambda: resumed(make(readinessPolicy="Running")),
        "held by a queue": lambda: queued(make(readinessPolicy="Running")),
        "cannot be read whole": lambda: unread(plain()),
        "nothing goes forward": lambda: stalled(make()),
        "spec refused": lambda: seen(plain(rollout={"replicas": 65})),
        "refused and suspended": lambda: suspended(seen(plain(rollout={"replicas": 65}))),
        "complete": lambda: complete(make()),
        "complete, then edited": lambda: edited(complete(make())),
        "failed": lambda: died(make()),
        "being deleted": lambda: deleting(make(readinessPolicy="Running")),
        "being deleted, complete": lambda: deleting(complete(make())),
    }


STAGES: Final[dict[str, dict[str, Callable[[], World]]]] = {
    "RLTrainingJob": _of_both(running, job)
    | {
        "the preflight samples": lambda: sampling(readinessPolicy="Running"),
        "running, a validation runs": lambda: reported(running(), progress={"step": 4, "evaluating": 4}),
        "running, a signal is raised": lambda: reported(running(), signals.healthy([verdict()])),
        "running, a remedy is watched": lambda: reported(
            running(), signals.healthy([verdict()]), remediations=[WATCHED]
        ),
        "a process is started again": lambda: started_again(running(readinessPolicy="Running")),
        "being paused": lambda: pausing(running(readinessPolicy="Running")),
        "paused, `Accepted`": lambda: paused(running(readinessPolicy="Accepted")),
        "paused, `Running`": lambda: paused(running(readinessPolicy="Running")),
        "paused, `Succeeded`": lambda: paused(running(readinessPolicy="Succeeded")),
        "paused and suspended": lambda: paused_and_suspended(running(readinessPolicy="Running")),
        "pause ended": lambda: ended_pause(running(readinessPolicy="Running")),
    },
    "RLEvalJob": _of_both(gated, lambda **spec: eval_job(**spec))
    | {
        "waits for a training job's weights": waiting,
        "the gate has not passed": refused_by_the_gate,
        "a candidate has failed": candidate_failed,
        "complete, without a gate": lambda: complete(evaluating()),
    },
}
"""Kind -> stage -> a function that brings a job to this stage."""
