"""Computes accelerator seconds from the times of pods, for `status.accelerators`. Pure.

A pod holds accelerators from when it gets a node until its last process has ended:

* begin: the time of its condition PodScheduled, since the device is reserved for it from then on;
* end: the latest `finishedAt` of its containers, once its phase is Succeeded or Failed;
* if a deleted pod vanishes before that: the end of its grace period, or the time when it was found gone if
  that is earlier;
* if a pod vanishes without a deletion: the time when it was last seen. That is too early by at most
  `SEEN_SECONDS`, or by the time for which no operator ran.

Each pod has an entry under its uid. An entry is added to the totals once, `KEPT` after its pod was found
gone. So a new leader with an older view of the cluster counts nothing twice.

The operator may not read nodes. So the product is taken from the labels that the pod requires of its node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from headway_api.accelerators import (
    MAX_PODS,
    MAX_TOTALS,
    Accelerators,
    HeldPod,
    HeldSeconds,
    Holder,
    seconds_of,
)
from headway_api.document import Json
from headway_operator.plan.observed import conditions, containers, is_over, moment, role_of

SEEN_SECONDS: Final = 60
"""Interval after which an otherwise unchanged status is written again, while accelerators are held."""
KEPT: Final = timedelta(minutes=10)
OTHER: Final = "other"
PRODUCT_LABELS: Final = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "node.kubernetes.io/instance-type",
)
"""Node labels that name a product, the most specific first."""
_DEVICE: Final = re.compile(
    r"[^/]+/(?:gpu|mig-.+|tpu|neuron(?:core|device)?|gaudi|npu|xpu|i915|xe)(?:\.shared)?"
)


def updated(
    before: Accelerators | None, pods: Iterable[Json], now: datetime, accelerator: str
) -> Accelerators | None:
    """The accelerator seconds as of now; `before` itself if there is nothing to write.

    Args:
        accelerator: resource name of the platform's accelerators. Pods with well-known devices count too.
    """
    now = now.replace(microsecond=0)
    if before is not None:
        now = max(now, before.seen_time)  # a clock that jumps back must not reduce the accounts
    seen = {pod.uid: pod for body in pods if (pod := held_pod(body, accelerator)) is not None}
    if before is None and not seen:
        return None
    known = before.pods if before is not None else []
    entries = [_updated_entry(pod, seen.pop(pod.uid, None), now, before.seen_time) for pod in known if before]
    made = _moved_to_totals(before, [*entries, *seen.values()], now)
    if before is None or (made.pods, made.totals) != (before.pods, before.totals):
        return made
    return made if is_due(before, now) else before


def is_due(accounts: Accelerators, now: datetime) -> bool:
    """Whether the status must record now that accelerators are still held."""
    return requeue_after(accounts, now) == 0


def requeue_after(accounts: Accelerators | None, now: datetime) -> float | None:
    """Seconds until the status must record again that accelerators are held; None if none are."""
    if accounts is None or all(pod.until is not None for pod in accounts.pods):
        return None
    return max(0.0, SEEN_SECONDS - (now - accounts.seen_time).total_seconds())


def held_pod(pod: Json, accelerator: str) -> HeldPod | None:
    """The accelerators that a pod holds; None if it asks for none, or has no node yet."""
    since, wanted = _scheduled(pod), dict(_devices(pod, accelerator))
    if since is None or not wanted:
        return None
    deleted = pod["metadata"].get("deletionTimestamp")
    return HeldPod(
        uid=pod["metadata"]["uid"],
        role=role_of(pod) or OTHER,
        product=product_of(pod, min(wanted)),
        count=sum(wanted.values()),
        since=since,
        ends=moment(deleted) if deleted else None,
        until=_ended(pod, since),
    )


def product_of(pod: Json, resource: str) -> str:
    """The product that a pod asks its node to have; the resource's name if it asks for none."""
    asked = {**dict(_required(pod)), **(pod["spec"].get("nodeSelector") or {})}
    found = next((asked[label] for label in PRODUCT_LABELS if label in asked), resource)
    return found[:128]


def _required(pod: Json) -> Iterator[tuple[str, str]]:
    """Labels that the pod's affinity requires with exactly one value."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms is None or len(terms) != 1:
        return
    for asked in terms[0].get("matchExpressions") or []:
        values = asked.get("values") or []
        if asked.get("operator") == "In" and len(values) == 1:
            yield asked["key"], values[0]


def _devices(pod: Json, accelerator: str) -> Iterator[tuple[str, int]]:
    """Resource -> number that all containers together ask for. Init containers run earlier, so they are
    ignored."""
    found: dict[str, int] = {}
    for container in pod.get("spec", {}).get("containers") or []:
        asked = container.get("resources") or {}
        for name, quantity in {**(asked.get("limits") or {}), **(asked.get("requests") or {})}.items():
            if (name == accelerator or _DEVICE.fullmatch(name)) and str(quantity).isdecimal():
                found[name] = found.get(name, 0) + int(quantity)
    yield from ((name, count) for name, count in found.items() if count)


def _scheduled(pod: Json) -> datetime | None:
    scheduled = conditions(pod).get("PodScheduled")
    if scheduled is not None:
        return moment(scheduled["lastTransitionTime"]) if scheduled["status"] == "True" else None
    started = pod.get("status", {}).get("startTime")
    return moment(started) if started else None


def _ended(pod: Json, since: datetime) -> datetime | None:
    """When a pod released its accelerators; None if the pod has not ended."""
    if not is_over(pod):
        return None
    endings: list[dict[str, Any]] = [
        ended for status in containers(pod) if (ended := status.get("state", {}).get("terminated"))
    ]
    moments = [moment(ended["finishedAt"]) for ended in endings if ended.get("finishedAt")]
    # A pod that its node refused, or that was evicted before it had a process, has only conditions.
    moments = moments or [moment(item["lastTransitionTime"]) for item in conditions(pod).values()]
    return max([since, *moments])


def _updated_entry(known: HeldPod, seen: HeldPod | None, now: datetime, last: datetime) -> HeldPod:
    """Update a pod's entry. `seen` is the pod as it is now; `last` is the time of the previous update."""
    if seen is not None:
        return seen.model_copy(update={"since": known.since, "count": known.count, "product": known.product})
    if known.gone_time is not None:
        return known
    end = known.until or (min(known.ends, now) if known.ends is not None else last)
    return known.model_copy(update={"until": max(known.since, end), "gone_time": now})


def _moved_to_totals(before: Accelerators | None, entries: list[HeldPod], now: datetime) -> Accelerators:
    """Add entries to the totals and drop them: of pods gone for `KEPT`, and of more if there are too many.

    If more than `MAX_PODS` entries still remain, the newest pods get none yet. No seconds are lost: a later
    entry also begins when the pod was scheduled.
    """
    gone = sorted((pod for pod in entries if pod.gone_time is not None), key=lambda pod: pod.gone_time or now)
    surplus = max(0, len(entries) - MAX_PODS)
    moved = [pod for index, pod in enumerate(gone) if index < surplus or now - (pod.gone_time or now) >= KEPT]
    uids = {pod.uid for pod in moved}
    kept = [pod for pod in entries if pod.uid not in uids]
    kept.sort(key=lambda pod: (pod.since, pod.uid))
    totals = {
        Holder(each.role, each.product): int(each.seconds) for each in (before.totals if before else [])
    }
    for pod in moved:
        whose = Holder(pod.role, pod.product)
        if whose not in totals and len(totals) >= MAX_TOTALS - 1:
            whose = Holder(OTHER, OTHER)
        totals[whose] = totals.get(whose, 0) + seconds_of(pod, now)
    return Accelerators(
        seen_time=now,
        totals=[HeldSeconds(role=r, product=p, seconds=str(n)) for (r, p), n in sorted(totals.items())],
        pods=kept[:MAX_PODS],
    )
