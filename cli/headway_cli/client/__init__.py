"""Jobs from Python: start them, wait for them, read their results (docs/python.md).

client        starts and finds jobs: TrainingClient
run           one job: its status, metrics, episodes and bill
asynchronous  the same methods as coroutines: AsyncTrainingClient, AsyncRun
places        the interface that jobs on a cluster and on this machine implement
on_cluster    a job on a cluster
on_machine    a job on this machine
child         starts and ends the process that runs a local job
child_main    the program of that process
waiting       how to wait for a job
document      the job in a file or a mapping, with changes: pure, except for reading
outcome       whether a job runs, is held or has ended: pure
frames        metrics as pandas.DataFrame
"""

from headway_api.records import Outcome, Purpose
from headway_cli.bill import Bill
from headway_cli.client.asynchronous import AsyncRun, AsyncTrainingClient
from headway_cli.client.client import TrainingClient
from headway_cli.client.outcome import RunFailedError, RunHeldError
from headway_cli.client.run import Run, Trajectory
from headway_cli.cluster import ClusterError
from headway_cli.local.manifest import ManifestError
from headway_cli.runs import RunNotFoundError

__all__ = [
    "AsyncRun",
    "AsyncTrainingClient",
    "Bill",
    "ClusterError",
    "ManifestError",
    "Outcome",
    "Purpose",
    "Run",
    "RunFailedError",
    "RunHeldError",
    "RunNotFoundError",
    "TrainingClient",
    "Trajectory",
]
