"""Metrics of the parts around the learner: servers, sandboxes, weights, the spool, and usage."""

from typing import Final

from headway_api.metrics.definition import OF_SERVER, Family

CONCURRENCY: Final = (
    Family("rollout/turns_in_flight", "Turns that http and sandboxed agents wait for now."),
    Family(
        "rollout/refused_turns",
        "Turns whose agent must ask again later: the servers are full.",
        kind="counter",
    ),
    Family("rollout/concurrency_limit", "Episodes that may run at once now; at most maxConcurrency."),
    Family("rollout/kv_cache_use", "Share of its KV cache that a server uses.", "ratio", labels=OF_SERVER),
    Family(
        "rollout/preemptions",
        "Requests that servers took out of a full KV cache and computed again; not those for new weights.",
        kind="counter",
    ),
    Family(
        "rollout/rerouted_requests",
        "Requests lost with their server and sent again, to another server if there is one.",
        kind="counter",
    ),
)
USAGE: Final = (
    Family("usage/tokens", "Tokens, by class of the bill.", "tokens", "counter", ("class",)),
    Family("usage/sandbox_seconds", "Seconds sandboxes were in use.", "seconds", "counter"),
    Family(
        "usage/accelerator_seconds",
        "Seconds accelerators were held, by the role whose pods held them and by product.",
        "seconds",
        "counter",
        ("role", "product"),
    ),
    Family("usage/cost_usd", "Cost so far by the price book.", "usd"),
    Family("usage/cost_at_step_usd", "Cost of the whole job when its newest step was taken.", "usd"),
    Family(
        "cost/usd",
        "Cost so far in parts: by what was paid for, and by model if it is not the job's own.",
        "usd",
        labels=("class", "model"),
    ),
    Family(
        "estimate/cost_usd",
        "Cost of the whole job, as it is estimated now: low, likely and high.",
        "usd",
        labels=("bound",),
    ),
    Family("budget/limit_usd", "The most that spec.budget lets the job cost.", "usd"),
    Family("budget/spent_usd", "How much of spec.budget.usd is spent.", "usd"),
    Family("budget/reserved_usd", "The most that running work may still cost.", "usd"),
    Family("budget/limit_tokens", "The most tokens of a class that spec.budget allows.", labels=("class",)),
    Family("budget/spent_tokens", "Tokens of a class that count against spec.budget.", labels=("class",)),
    Family(
        "budget/reserved_tokens",
        "The most tokens of a class that running work may still use.",
        labels=("class",),
    ),
    Family("budget/exhausted", "1 where nothing runs and nothing more fits spec.budget."),
)
SANDBOX: Final = (
    Family("sandbox/pool_size", "Sandboxes, by state.", labels=("state",)),
    Family(
        "sandbox/lease_seconds",
        "From asking for a sandbox to having one.",
        "seconds",
        "histogram",
        ("start",),
    ),
    Family("sandbox/start_seconds", "From creating a sandbox to its first answer.", "seconds", "histogram"),
    Family("sandbox/created", "Sandboxes created.", kind="counter"),
    Family("sandbox/destroyed", "Sandboxes destroyed.", kind="counter", labels=("reason",)),
    Family(
        "sandbox/tool_call_seconds",
        "From sending a tool call to its answer, as the coordinator sees it.",
        "seconds",
        "histogram",
    ),
    Family("sandbox/failures", "Sandboxes lost.", kind="counter", labels=("reason",)),
    Family("sandbox/waiting", "Episodes waiting for a sandbox."),
)
WEIGHTS: Final = (
    Family("weights/version", "Training step of the weights a server holds.", "steps", labels=OF_SERVER),
    Family(
        "weights/sync_seconds",
        "From asking a server to load weights to its holding them, verified.",
        "seconds",
        "histogram",
    ),
    Family(
        "weights/servers", "Rollout servers, by whether they are in rotation.", labels=("state", "purpose")
    ),
    Family(
        "weights/verification_failures",
        "Loads of weights that did not match their manifest: a digest, a shape or the canary differed.",
        kind="counter",
    ),
    Family(
        "weights/canary_error",
        "Mean difference of a fixed sequence's log-probabilities, learner's to server's, at the last load.",
        "nats",
        labels=OF_SERVER,
    ),
)
SPOOL: Final = (
    Family("spool/groups", "Finished groups that no checkpoint has acknowledged."),
    Family(
        "store/busy_seconds",
        "How long the write to the artifact store that is under way has taken; 0 while there is none.",
        "seconds",
    ),
)
