"""Names, labels, ports and paths that more than one process must agree on.

The operator creates objects under these names, and the processes of a job find each other by them. None of
them is configurable: if two processes disagreed on a name, the job would fail.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "headway.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

FIELD_MANAGER_OPERATOR: Final = "headway-operator"
"""Owns conditions, roles, state, observedGeneration, startTime, completionTime and resumedPause."""

FIELD_MANAGER_COORDINATOR: Final = "headway-coordinator"
"""Owns progress, reward, validation, usage, preflight, checkpoints, artifacts, algorithm, tracking, signals,
pause."""

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
COST_LABELS: Final = ("team", "project", "cost-center")
"""Labels of a job for cost allocation, with any prefix or none. The chart may name others."""
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_JOB_NAME: Final = f"{GROUP}/job-name"
LABEL_JOB_KIND: Final = f"{GROUP}/job-kind"
LABEL_SERVER_SET: Final = f"{GROUP}/server-set"
"""On rollout servers of a job with several sets: the set that they belong to."""
LABEL_SUITE: Final = f"{GROUP}/suite"
"""On the broker and the sandboxes of a suite of an RLEvalJob: the suite's name. The broker and the sandboxes
of the job's own environment have no such label."""
LABEL_JUDGE: Final = f"{GROUP}/judge"
"""On the servers of a judge's model: the judge's name."""
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"

ANNOTATION_RESUME: Final = f"{GROUP}/resume"
"""Ends the pause of a job if its value is the pause's time (`status.pause.time`). A person writes it."""
ANNOTATION_REMEDY: Final = f"{GROUP}/remedy"
"""Orders a change of a running job; its value names the change (docs/remedies.md). A person writes it."""

FINALIZER_TEARDOWN: Final = f"{GROUP}/teardown"
"""Keeps a deleted job that has objects until the operator has taken them down in order."""

COORDINATOR: Final = "coordinator"
LEARNER: Final = "learner"
ROLLOUT: Final = "rollout"
BROKER: Final = "broker"
SANDBOX: Final = "sandbox"
RUNNER: Final = "runner"
"""The container of a sandbox pod that runs code for the model, beside the server's container."""
SUITE_BROKER: Final = "suite-broker"
"""LABEL_COMPONENT of the brokers of suites, so that the Service of the job's own broker does not select them.
Otherwise they are brokers like the job's own."""
JUDGE: Final = "judge"
"""LABEL_COMPONENT of the servers of judges' models. Only this and their key differ from rollout servers."""
ROLES: Final = (COORDINATOR, LEARNER, ROLLOUT, BROKER, SANDBOX)
TRAINING_SET: Final = "training"
"""In an RLTrainingJob with a server for held-out rows: the set of all other servers."""
VALIDATION_SET: Final = "validation"
"""The set that consists of the server for held-out rows."""

PORT_COORDINATOR: Final = 8100
"""Learner API of the coordinator, its probes and `/metrics`."""
STARTING: Final = "Starting"
"""Reason in the coordinator's answers (503) until it can serve. Until then it reads the records of its
predecessor."""
PORT_GATEWAY: Final = 8110
"""The gateway, where agents outside the coordinator's process (`http` and `sandboxed`) request turns."""
PORT_ENGINE: Final = 8000
"""vLLM's own HTTP server."""
PORT_WEIGHTS: Final = 8001
"""The weight agent beside vLLM: takes a manifest, fetches and verifies the weights, makes the engine load
them."""
PORT_ENGINE_METRICS: Final = 8002
"""vLLM's metrics, for scrapers; nothing else of vLLM can be reached there."""
PORT_BROKER: Final = 8200
PORT_LEARNER: Final = 8300
"""Probes of the learner (`/healthz`, `/readyz`), in every learner pod."""
PORT_DIRECT: Final = 8310
"""Where the learner sends its weights to the rollout servers of its job (`weights_direct`)."""
SYSTEM_PORTS: Final = (32768, 60999)
"""First and last port of the range from which Linux chooses free ports in a new network namespace, such as a
pod's. torch.distributed listens on ports of this range."""
PORT_SANDBOX: Final = 8080
PORT_TORCH: Final = 29500
"""Rendezvous of the learner's ranks (MASTER_PORT)."""

CONFIG_DIR: Final = "/etc/headway"
CONFIG_FILE: Final = f"{CONFIG_DIR}/job.json"
"""`JobConfig` as JSON, mounted into every pod of a job except sandboxes."""
KEYS_DIR: Final = "/etc/headway-keys"
"""A file for each key that the pod's role holds (`headway_api.keys`)."""
TOKEN_KEY: Final = "token"
"""Key of an endpoint's Secret, and of `token_secret`; also a file in KEYS_DIR if `token_secret` exists."""
ENDPOINTS_DIR: Final = "/etc/headway-endpoints"
"""In the coordinator's pod: a folder for each endpoint candidate with a Secret, which has the Secret's key
TOKEN_KEY as a file. While that Secret or that key is missing, the folder is empty."""
JUDGES_DIR: Final = "/etc/headway-judges"
"""In the coordinator's pod: a folder like those of ENDPOINTS_DIR for each judge with a Secret. A judge whose
model the job serves has a folder too, with its servers' key."""
PRICES_DIR: Final = "/etc/headway-prices"
"""In the coordinator's pod: the ConfigMap of the price book; empty while there is none."""
PRICES_KEY: Final = "prices.yaml"
"""Key of the price book's ConfigMap."""
PRICES_NAME: Final = "headway-prices"
"""The ConfigMap that a job without `spec.priceBook` uses, if its namespace has it."""
EPISODE_DIR: Final = "/run/headway"
"""The only folder that code run for the model may write to: a volume of the container `runner`, whose root
file system is read-only."""
EPISODE_FILE: Final = f"{EPISODE_DIR}/episode.json"
"""In the sandbox pod of a sandboxed agent: its episode as JSON (`AgentRequest.episode`)."""
RUNNER_DIR: Final = "/run/headway-runner"
"""In a sandbox pod with a container `runner`: the folder of the socket at which the server waits for it."""
RUNNER_SOCKET: Final = f"{RUNNER_DIR}/socket"
CACHE_DIR: Final = "/var/cache/headway"
"""A writable emptyDir: downloaded models and adapters, HOME of the heavy libraries."""

ENV_CONFIG: Final = "HEADWAY_CONFIG"
ENV_KEYS: Final = "HEADWAY_KEYS_DIR"
"""Where a process looks for its keys instead of in KEYS_DIR, for running without a cluster."""
ENV_PRICES: Final = "HEADWAY_PRICES_DIR"
"""Where the coordinator looks for the price book instead of in PRICES_DIR."""
ENV_ENDPOINTS: Final = "HEADWAY_ENDPOINTS_DIR"
"""Where the coordinator looks for the tokens of endpoint candidates instead of in ENDPOINTS_DIR."""
ENV_BASELINE_ENDPOINT: Final = "HEADWAY_BASELINE_ENDPOINT_DIR"
"""Variable of a coordinator: folder of the endpoint that samples the baseline instead of the job's model."""
ENV_JUDGES: Final = "HEADWAY_JUDGES_DIR"
"""Where the coordinator looks for the tokens of judges instead of in JUDGES_DIR."""
ENV_CACHE: Final = "HEADWAY_CACHE_DIR"
ENV_POD_NAME: Final = "HEADWAY_POD_NAME"
ENV_POD_IP: Final = "HEADWAY_POD_IP"
ENV_SERVER_SET: Final = "HEADWAY_SERVER_SET"
"""Variable of a rollout server of an RLEvalJob: the set that it belongs to."""
ENV_JUDGE: Final = "HEADWAY_JUDGE"
"""Variable of a server of a judge's model: the judge's name."""
ENV_SUITE: Final = "HEADWAY_SUITE"
"""Variable of a broker of an RLEvalJob: the suite whose sandboxes it hands out. Absent in the job's own
broker."""
ENV_COORDINATOR_URL: Final = "HEADWAY_COORDINATOR_URL"
"""Where the learner finds the coordinator instead of at its Service: for running both without a cluster."""
ENV_COORDINATOR_PORT: Final = "HEADWAY_COORDINATOR_PORT"
"""Port of the coordinator instead of PORT_COORDINATOR: for running several jobs on one machine."""
ENV_PROBE_PORT: Final = "HEADWAY_PROBE_PORT"
"""Port of the learner's probes instead of PORT_LEARNER: for running several jobs on one machine."""
ENV_DIRECT_ADDRESS: Final = "HEADWAY_DIRECT_ADDRESS"
"""`host:port` at which the learner hands out its weights instead of at `learner_host` and PORT_DIRECT: for
running without a cluster."""
ENV_BIND_ADDRESS: Final = "HEADWAY_BIND_ADDRESS"
"""The only address of this machine at which a process listens. Absent: at all addresses. It is set for
running several jobs without a cluster."""
ENV_HOSTS: Final = "HEADWAY_HOSTS_FILE"
"""A file in the format of /etc/hosts that resolves the names of a job's Services instead of the DNS, for
running without a cluster. A name has one line for each ready address."""
ENV_JOB_FOLDER: Final = "HEADWAY_JOB_FOLDER"
"""Where the coordinator finds the job and writes its status instead of at the API server: for running without
a cluster."""
ENV_ENVIRONMENT_MODULES: Final = "HEADWAY_ENVIRONMENT_MODULES"
"""The folder of the environment's modules, for a broker whose sandboxes are processes instead of pods."""
ENV_SANDBOX_NETWORK: Final = "HEADWAY_SANDBOX_NETWORK"
"""The N of the loopback addresses 127.N.x.y of sandboxes that are processes."""
ENV_LOCAL_JOB: Final = "HEADWAY_LOCAL_JOB"
"""In every process of a job that runs without a cluster: the job's folder, by which its processes are
found."""
ENV_LOCAL_POD: Final = "HEADWAY_LOCAL_POD"
"""In every process of a job that runs without a cluster: the name that its pod would have on a cluster."""
LOCAL_JOBS: Final = ".headway"
"""Folder of the jobs that run without a cluster, in the folder where they were started."""
ENV_TERMINATION_FILE: Final = "HEADWAY_TERMINATION_FILE"
"""File in which a process writes why it ends, instead of /dev/termination-log."""
ENV_PLUGINS: Final = "HEADWAY_PLUGINS_DIR"
"""Where the learner looks for a user's modules instead of in `/plugins`: for running without a cluster."""
ENV_ENTRYPOINT: Final = "HEADWAY_ENTRYPOINT"
"""In the sandbox pod: `module:Class` of the environment."""
ENV_ENVIRONMENT_CONFIG: Final = "HEADWAY_ENVIRONMENT_CONFIG"
"""In the sandbox pod: `spec.environment.config` as JSON."""
ENV_REACH: Final = "HEADWAY_REACH_AT_START"
"""Set if a sandbox must test at its start which destinations it reaches, for the preflight."""
ENV_SANDBOX_SOCKET: Final = "HEADWAY_SANDBOX_SOCKET"
"""File descriptor of the socket at which a sandbox's server answers if it runs without a pod. The server's
parent process opened the socket."""
ENV_EPISODE_FILE: Final = "HEADWAY_EPISODE_FILE"
"""In a sandboxed agent: the path of its episode file. In the sandbox's server: where to write that file
instead of at EPISODE_FILE, for running a sandbox without a pod."""

ENV_RUNNER: Final = "HEADWAY_RUNNER"
"""In a sandbox pod with a container `runner`: the path of the socket at which the server waits for it."""

MAX_JOB_NAME: Final = 40
"""Longest job name: children's host names (`<job>-eval-coordinator-xxxxx`) must fit in 63 characters."""

CHECK_AGENT: Final = "Agent"
"""Name of the preflight's check that the agent's service answers."""
CHECK_BASELINE: Final = "Baseline"
"""Name of the entry in the preflight's status that says what baseline episodes wait for."""
CHECK_PRICES: Final = "PriceBook"
TRAINING_KIND: Final = "RLTrainingJob"
EVAL_KIND: Final = "RLEvalJob"
BUDGET_KIND: Final = "RLBudget"
BUDGET_NAME: Final = "default"
"""Name of the one RLBudget that a namespace may have."""

PLURALS: Final = {TRAINING_KIND: "rltrainingjobs", EVAL_KIND: "rlevaljobs"}
"""Kind of job -> its resource in the API."""
CUSTOM: Final = PLURALS | {BUDGET_KIND: "rlbudgets"}
"""Kind of custom resource -> its resource in the API."""


def stem(kind: str, job: str) -> str:
    """Prefix of the names of a job's objects. It differs by kind, because jobs of both kinds may share a
    name."""
    return job if kind == TRAINING_KIND else f"{job}-eval"


def child(stem: str, role: str) -> str:
    """Name of a job's object for `role`, shared by Services, workloads and service accounts."""
    return f"{stem}-{role}"


def server_set(stem: str, which: int | str) -> str:
    """Name of the Deployment and the Service of one set of rollout servers. Sets of an RLEvalJob have
    numbers; the set for held-out rows of an RLTrainingJob has a name."""
    return f"{child(stem, ROLLOUT)}-{which}"


def suite_broker(stem: str, number: int) -> str:
    """Name of the Deployment and the Service of one suite's broker; the suites are numbered from 1."""
    return f"{child(stem, BROKER)}-{number}"


def judge(stem: str, number: int) -> str:
    """Name of the Deployment and the Service of a judge's model; the judges of a job are numbered from 1."""
    return f"{child(stem, JUDGE)}-{number}"


def check_of_judge(name: str) -> str:
    """Name of the preflight's check that a judge answers."""
    return f"Judge {name}"


def broker_of(stem: str, uid: str, runtime_class: str = "") -> str:
    """Name of a service account that is never created. As a subject of a broker's binding, it stands for the
    job's uid.

    A broker may name a uid as owner of its pods only if the subject for this uid has the broker's role. The
    chart's admission policy checks this. With `runtime_class`, the subject counts only for pods of that
    RuntimeClass.
    """
    parts = [stem, uid, *([runtime_class] if runtime_class else [])]
    return child(".".join(parts), BROKER)


def config_map(stem: str) -> str:
    """ConfigMap that holds `job.json`."""
    return f"{stem}-config"


def keys_secret(stem: str, uid: str) -> str:
    """Secret that holds the job's keys; created once, never read back by the operator.

    The uid distinguishes it from the Secret of a deleted job of the same name, which nobody may read.
    """
    return f"{stem}-keys-{uid[:8]}"


def token_secret(stem: str, uid: str) -> str:
    """Secret with the one token for all keys, for a job that an earlier version started."""
    return f"{stem}-token-{uid[:8]}"


def service_host(stem: str, role: str, namespace: str) -> str:
    """DNS name of a job's Service, without the cluster's own domain, which may differ."""
    return f"{child(stem, role)}.{namespace}.svc"


def learner_host(job: str, namespace: str) -> str:
    """DNS name of the pod with the learner's first process. It is the same for every pod that replaces it."""
    learner = child(job, LEARNER)
    return f"{learner}-0.{service_host(job, LEARNER, namespace)}"


def job_labels(kind: str, job: str, uid: str, role: str | None = None) -> dict[str, str]:
    """Labels on everything that belongs to one job; with `role`, on everything of that role."""
    labels = {
        LABEL_NAME: "headway",
        LABEL_INSTANCE: stem(kind, job),
        LABEL_MANAGED_BY: FIELD_MANAGER_OPERATOR,
        LABEL_JOB_KIND: kind,
        LABEL_JOB_NAME: job,
        LABEL_JOB_UID: uid,
    }
    if role is not None:
        labels[LABEL_COMPONENT] = role
    return labels
