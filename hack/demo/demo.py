"""`make demo`: trains the quickstart's agent on a real Kubernetes cluster, up to a checkpoint in S3 and a
bill.

KEEP=1             leave the cluster and the job running
CLUSTER=current    use kubectl's current cluster (with IMAGE_PREFIX and IMAGE_TAG, see settings.py)
SEED=n STEPS=n     another seed, fewer steps
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from headway_demo import bill, evaluation, phases, quickstart, report, step_times
from headway_demo.console import Timings, fail
from headway_demo.kube import KubeError
from headway_demo.platform import Platform, leftovers, platform_up
from headway_demo.settings import NAMESPACE, Settings, SettingsError
from headway_demo.watch import Job, follow

NAME = "sop-quickstart"
JOB_DEADLINE_S = 3000
CREATED_DEADLINE_S = 900
EVALUATION_DEADLINE_S = 900


def changes(settings: Settings) -> dict[str, Any]:
    """The changes to the example's spec that this run's settings require."""
    spec: dict[str, Any] = {"seed": settings.seed}
    if settings.max_steps:
        spec["schedule"] = {"maxSteps": settings.max_steps}
    return spec


def pods_created(platform: Platform, since: float) -> str:
    """A line of the report: seconds from apply until a pod of every role exists."""
    roles: set[str] = set()
    asked = ("pods", "-n", NAMESPACE, "-l", f"headway.dev/job-name={NAME}")
    for pod in platform.kube.changes(*asked, deadline_s=CREATED_DEADLINE_S):
        roles.add(pod["metadata"]["labels"]["app.kubernetes.io/component"])
        if roles >= {"coordinator", "broker", "sandbox", "learner", "rollout"}:
            return (
                f"{time.monotonic() - since:.1f} s from kubectl apply until pods of every role were created"
            )
    raise KubeError(
        f"after {CREATED_DEADLINE_S} s there are only pods of {', '.join(sorted(roles)) or 'no role'}"
    )


def run_job(platform: Platform, settings: Settings) -> tuple[Job, str]:
    """Apply the example job and follow it until it ends.

    Returns:
        The job, and a line about the time until all pods were created.
    """
    platform.kube.run("delete", "rltrainingjob", NAME, "-n", NAMESPACE, "--ignore-not-found")
    applied = time.monotonic()
    platform.kube.apply(quickstart.job(platform.environment_image, changes=changes(settings)))
    print("    the preflight samples baseline episodes before the learner's pod exists", flush=True)
    created = pods_created(platform, applied)
    print(f"    {created}", flush=True)
    return follow(platform.kube, NAMESPACE, NAME, deadline_s=JOB_DEADLINE_S), created


def collect(platform: Platform, job: Job, settings: Settings) -> Path:
    """Copy all files that the job wrote, and return the folder of the copy."""
    folder = settings.output / job["metadata"]["uid"]
    with platform.bucket() as bucket:
        bucket.download(job["status"]["artifacts"]["uri"], folder)
    return folder


def tracked(platform: Platform, job: Job) -> phases.Tracked:
    """Metrics of the job's run in MLflow; empty if the job could not report to MLflow."""
    run = job["status"].get("tracking", {}).get("mlflow")
    if run is None:
        return {}
    with platform.kube.forward(NAMESPACE, "service/mlflow", 5000) as port:
        return phases.tracked(port, run["runId"])


def counted_again(platform: Platform, job: Job, settings: Settings) -> tuple[Path, phases.Tracked, str]:
    """Copy the job's results, and return the copy, the metrics in MLflow, and the bill recounted from the
    copy."""
    run = collect(platform, job, settings)
    return run, tracked(platform, job), bill.verified(job, run)


def finish(platform: Platform, settings: Settings) -> str:
    """Delete the job, unless the settings keep it. Return text about the objects that remain."""
    if settings.keep:
        where = f"KUBECONFIG={platform.kube.kubeconfig} " if platform.kube.kubeconfig else ""
        look = (f"describe rltj {NAME}", f"get rlev {evaluation.NAME}", f"describe rlev {evaluation.NAME}")
        return "kept:\n" + "\n".join(f"  {where}kubectl -n {NAMESPACE} {what}" for what in look)
    for kind in (evaluation.KIND, "rltrainingjob"):
        platform.kube.run("delete", kind, NAME, "-n", NAMESPACE, "--timeout=180s", timeout_s=200)
    platform.kube.wait(
        "the job to leave nothing", lambda: not leftovers(platform.kube), deadline_s=60,
        explain=lambda: str([o["metadata"]["name"] for o in leftovers(platform.kube)]),
    )  # fmt: skip
    return "after the deletion, nothing of the job is left in the cluster"


def demo(settings: Settings) -> None:
    """Run the whole demo and print its report."""
    timings = Timings()
    if settings.begun is not None:
        timings.took("Python environment", max(0.0, time.time() - settings.begun))
    with platform_up(settings, timings) as platform:
        with timings.step(report.JOB_STEP):
            job, created = run_job(platform, settings)
        # Recount the training's bill while the evaluation's servers start.
        with ThreadPoolExecutor(1) as beside:
            counting = beside.submit(counted_again, platform, job, settings)
            with timings.step("the evaluation, from apply to its gate"):
                evaluation.start_reference(platform.kube, platform.refs, settings)
                judged = evaluation.run(platform, deadline_s=EVALUATION_DEADLINE_S)
            run, found, counted = counting.result()
        with timings.step("copy of the results, recount of the bill"):
            compared = collect(platform, judged, settings)
            evaluation_counted = bill.verified(judged, compared)
            recounted = evaluation.recounted(platform, judged, compared)
            shared = bill.of_namespace(platform.kube, job, judged)
        threshold = float(job["spec"]["evaluation"]["successThreshold"])
        print("\n" + report.text(job, run, timings.seconds, threshold, counted, found))
        print(f"  {created}\n")
        print(f"Where the seconds of each step went\n{step_times.verified(step_times.read(run))}\n")
        print(evaluation.text(judged, compared))
        print(f"  recounted from the table: {recounted}")
        print(f"\nThe bill of the evaluation\n{evaluation_counted}")
        print(f"\nThe budget of the namespace\n{shared}")
        print(f"\n{finish(platform, settings)}")


def main() -> int:
    """Run the demo, and return its exit code. SIGTERM acts like Ctrl-C, so that the demo stops the
    cluster."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        demo(Settings.from_environ(os.environ))
    except (SettingsError, KubeError, bill.BillMismatchError, step_times.TimeUnaccountedError) as error:
        fail(str(error))
        return 1
    except subprocess.CalledProcessError as error:
        fail(f"{error.cmd} exited {error.returncode}")
        return 1
    except KeyboardInterrupt:
        fail("interrupted; everything that was started has been stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
