"""Metrics of the parts around the learner: servers, sandboxes, weights, the spool, and usage."""

from typing import Final

from headway_api.metrics.definition import OF_SERVER, MetricFamily

CONCURRENCY: Final = (
    MetricFamily("rollout/turns_in_flight", "Turns that http and sandboxed agents wait for now."),
    MetricFamily(
        "rollout/refused_turns",
        "Turns whose agent must ask again later: the servers are full.",
        kind="counter",
    ),
    MetricFamily("rollout/concurrency_limit", "Episodes that may run at once now; at most maxConcurrency."),
    MetricFamily(
        "rollout/kv_cache_use", "Share of its KV cache that a server uses.", "ratio", labels=OF_SERVER
    ),
    MetricFamily(
        "rollout/preemptions",
        "Requests that servers took out of a full KV cache and computed again; not those for new weights.",
        kind="counter",
    ),
    MetricFamily(
        "rollout/rerouted_requests",
        "Requests lost with their server and sent again, to another server if there is one.",
        kind="counter",
    ),
)
USAGE: Final = (
    MetricFamily("usage/tokens", "Tokens, by class of the bill.", "tokens", "counter", ("class",)),
    MetricFamily("usage/sandbox_seconds", "Seconds sandboxes were in use.", "seconds", "counter"),
    MetricFamily(
        "usage/accelerator_seconds",
        "Seconds accelerators were held, by the role whose pods held them and by product.",
        "seconds",
        "counter",
        ("role", "product"),
    ),
    MetricFamily("usage/cost_usd", "Cost so far by the price book.", "usd"),
    MetricFamily("usage/cost_at_step_usd", "Cost of the whole job when its newest step was taken.", "usd"),
    MetricFamily(
        "cost/usd",
        "Cost so far in parts: by what was paid for, and by model if it is not the job's own.",
        "usd",
        labels=("class", "model"),
    ),
    MetricFamily(
        "estimate/cost_usd",
        "Cost of the whole job, as it is estimated now: low, likely and high.",
        "usd",
        labels=("bound",),
    ),
    MetricFamily("budget/limit_usd", "The most that spec.budget lets the job cost.", "usd"),
    MetricFamily("budget/spent_usd", "How much of spec.budget.usd is spent.", "usd"),
    MetricFamily("budget/reserved_usd", "The most that running work may still cost.", "usd"),
    MetricFamily(
        "budget/limit_tokens", "The most tokens of a class that spec.budget allows.", labels=("class",)
    ),
    MetricFamily(
        "budget/spent_tokens", "Tokens of a class that count against spec.budget.", labels=("class",)
    ),
    MetricFamily(
        "budget/reserved_tokens",
        "The most tokens of a class that running work may still use.",
        labels=("class",),
    ),
    MetricFamily("budget/exhausted", "1 where nothing runs and nothing more fits spec.budget."),
)
SANDBOX: Final = (
    MetricFamily("sandbox/pool_size", "Sandboxes, by state.", labels=("state",)),
    MetricFamily(
        "sandbox/lease_seconds",
        "From asking for a sandbox to having one.",
        "seconds",
        "histogram",
        ("start",),
    ),
    MetricFamily(
        "sandbox/start_seconds", "From creating a sandbox to its first answer.", "seconds", "histogram"
    ),
    MetricFamily("sandbox/created", "Sandboxes created.", kind="counter"),
    MetricFamily("sandbox/destroyed", "Sandboxes destroyed.", kind="counter", labels=("reason",)),
    MetricFamily(
        "sandbox/tool_call_seconds",
        "From sending a tool call to its answer, as the coordinator sees it.",
        "seconds",
        "histogram",
    ),
    MetricFamily("sandbox/failures", "Sandboxes lost.", kind="counter", labels=("reason",)),
    MetricFamily("sandbox/waiting", "Episodes waiting for a sandbox."),
)
WEIGHTS: Final = (
    MetricFamily(
        "weights/version", "Training step of the weights a server holds.", "steps", labels=OF_SERVER
    ),
    MetricFamily(
        "weights/sync_seconds",
        "From asking a server to load weights to its holding them, verified.",
        "seconds",
        "histogram",
    ),
    MetricFamily(
        "weights/servers", "Rollout servers, by whether they are in rotation.", labels=("state", "purpose")
    ),
    MetricFamily(
        "weights/verification_failures",
        "Loads of weights that did not match their manifest: a digest, a shape or the canary differed.",
        kind="counter",
    ),
    MetricFamily(
        "weights/canary_error",
        "Mean difference between learner and server in the canary's log-probabilities, at the last load.",
        "nats",
        labels=OF_SERVER,
    ),
)
SPOOL: Final = (
    MetricFamily("spool/groups", "Finished groups that no checkpoint has acknowledged."),
    MetricFamily(
        "store/busy_seconds",
        "How long the write to the artifact store that is under way has taken; 0 while there is none.",
        "seconds",
    ),
)
