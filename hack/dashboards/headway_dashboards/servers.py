"""The board of rollout servers: the weights that they hold, and vLLM's own metrics."""

from __future__ import annotations

from typing import Any

from headway_dashboards import board
from headway_dashboards.board import Board, Section
from headway_dashboards.panels import PER_MINUTE, RED, YELLOW, Limit, Query, curves, metric_curves, number
from headway_dashboards.promql import (
    BY_JOB,
    JOB,
    SERVER,
    narrowed,
    of,
    per_second,
    quantile,
    total,
    value,
    vllm,
    vllm_quantile,
)

OF_SERVER = "{{job_name}} {{server}}"
OF_PURPOSE = f'{JOB}, purpose=~"$purpose"'


def made() -> Board:
    """The board of rollout servers."""
    return Board(
        "servers",
        "Headway / Rollout servers",
        "Weights that servers hold and take; KV cache, queues and latencies as vLLM counts them.",
        [board.namespace(), board.kind(), board.job_name(), board.purpose(), board.server()],
        [
            Section("Weights", _weights()),
            Section("KV cache and load", _load()),
            Section("Latency", _latency()),
            Section("Tokens and requests", _work()),
        ],
    )


def _weights() -> list[Any]:
    serving, waiting = (
        value("weights/servers", narrowed(OF_PURPOSE, state=state)) for state in ("serving", "waiting")
    )
    held = value("weights/version", SERVER)
    newest = f"max by ({BY_JOB}) ({of('weights/version')})"
    return [
        number(
            "In rotation",
            "Servers that hold the wanted weights.",
            Query(f"sum({serving})", "serving"),
        ),
        number(
            "Not in rotation",
            "They start, take weights, or failed: the condition WeightsInSync says which.",
            Query(f"sum({waiting})", "waiting"),
            limits=[Limit(1, YELLOW)],
        ),
        number(
            "Refused loads",
            "Of weights that did not match their manifest, since the coordinator began.",
            Query(f"sum({value('weights/verification_failures')})", "refused"),
            limits=[Limit(1)],
        ),
        number(
            "Scraped",
            "Servers whose own metrics Prometheus has: see podMonitor.servers and metricsFrom.",
            Query(f"count({vllm('num_requests_running')})", "scraped"),
        ),
        number(
            "Preempted",
            "Requests taken out of a full KV cache and computed again.",
            Query(f"sum({value('rollout/preemptions')})", "preempted"),
        ),
        number(
            "Asked again",
            "Requests lost with their server.",
            Query(f"sum({value('rollout/rerouted_requests')})", "asked again"),
        ),
        curves(
            "Weights that each server holds",
            "Training step. A server that stays behind is out of rotation.",
            [Query(held, OF_SERVER)],
        ),
        curves(
            "Steps behind",
            "Behind the newest that any server of the job holds.",
            [Query(f"{newest} - on ({BY_JOB}) group_right () {held}", OF_SERVER)],
            lowest=0,
        ),
        curves(
            "Taking new weights",
            "A load on a server, verified; and from the learner's report to the first server that has them.",
            [
                Query(quantile(0.5, "weights/sync_seconds"), "{{job_name}} half of loads within"),
                Query(quantile(0.95, "weights/sync_seconds"), "{{job_name}} 95 % of loads within"),
                Query(value("timing_s/weight_sync"), "{{job_name}} to the first server"),
            ],
            unit="s",
        ),
        curves(
            "Canary",
            "Mean difference of a fixed sequence's log-probabilities at the last load.",
            [Query(value("weights/canary_error", SERVER), OF_SERVER)],
            unit="suffix: nat",
            log=True,
        ),
        curves(
            "Servers",
            "In rotation and not.",
            [Query(value("weights/servers", OF_PURPOSE), "{{job_name}} {{purpose}} {{state}}")],
            stacked=True,
        ),
        curves(
            "Preempted and asked again",
            "What is computed twice.",
            [
                Query(f"60 * {total(per_second(of('rollout/preemptions')))}", "{{job_name}} preempted"),
                Query(
                    f"60 * {total(per_second(of('rollout/rerouted_requests')))}", "{{job_name}} asked again"
                ),
            ],
            unit=PER_MINUTE,
        ),
    ]


def _load() -> list[Any]:
    hits, asked = (per_second(vllm(f"prefix_cache_{name}_total")) for name in ("hits", "queries"))
    return [
        curves(
            "KV cache in use",
            "As vLLM says it, and as the coordinator last heard. From 90 % on fewer episodes run at once.",
            [
                Query(vllm("kv_cache_usage_perc"), OF_SERVER),
                Query(value("rollout/kv_cache_use", SERVER), f"{OF_SERVER} (coordinator)"),
            ],
            unit="percentunit",
            limits=[Limit(0.8, YELLOW), Limit(0.9, RED)],
            lowest=0,
        ),
        curves(
            "Requests",
            "In the batch, and those that wait for a place in it.",
            [
                Query(vllm("num_requests_running"), f"{OF_SERVER} running"),
                Query(vllm("num_requests_waiting"), f"{OF_SERVER} waiting"),
            ],
        ),
        curves(
            "Episodes in flight",
            "Against the limit that the KV caches set.",
            [
                Query(value("episodes/in_flight", OF_PURPOSE), "{{job_name}} {{purpose}}"),
                Query(value("rollout/concurrency_limit"), "{{job_name}} limit"),
            ],
        ),
        curves(
            "Preemptions",
            "By server. Those for new weights are among them.",
            [Query(f"60 * {per_second(vllm('num_preemptions_total'))}", OF_SERVER)],
            unit=PER_MINUTE,
        ),
        curves(
            "Prefix cache",
            "Share of prompt tokens that were found there. New weights leave nothing to find.",
            [
                Query(
                    f"{hits} / {asked}",
                    OF_SERVER,
                ),
            ],
            unit="percentunit",
            lowest=0,
        ),
        metric_curves(
            "Turns",
            "That agents outside the coordinator wait for, and that must be sent again later.",
            {"in flight": "rollout/turns_in_flight", "refused": "rollout/refused_turns"},
        ),
    ]


def _latency() -> list[Any]:
    def of_requests(title: str, what: str, name: str) -> Any:
        queries = [
            Query(vllm_quantile(0.5, name), f"{OF_SERVER} half within"),
            Query(vllm_quantile(0.95, name), f"{OF_SERVER} 95 % within"),
        ]
        return curves(title, what, queries, unit="s")

    return [
        of_requests(
            "A request",
            "From its arrival to its last token: one turn of an episode.",
            "e2e_request_latency_seconds",
        ),
        of_requests("First token", "From a request's arrival.", "time_to_first_token_seconds"),
        of_requests("Between tokens", "Of one request.", "inter_token_latency_seconds"),
        of_requests(
            "In the queue",
            "Before a request is computed. Long: too many episodes for these servers.",
            "request_queue_time_seconds",
        ),
        of_requests("Prefill", "Computing what is new of a prompt.", "request_prefill_time_seconds"),
        of_requests("Decode", "Sampling a turn's tokens.", "request_decode_time_seconds"),
    ]


def _work() -> list[Any]:
    finished = total(per_second(vllm("request_success_total")), "finished_reason")
    return [
        curves(
            "Tokens a second",
            "Computed of prompts, and sampled.",
            [
                Query(per_second(vllm("prompt_tokens_total")), f"{OF_SERVER} prompt"),
                Query(per_second(vllm("generation_tokens_total")), f"{OF_SERVER} sampled"),
            ],
            unit="suffix: /s",
        ),
        curves(
            "Requests that ended",
            "By reason: length is a turn cut at maxTokens, or a full context.",
            [Query(f"60 * {finished}", "{{job_name}} {{finished_reason}}")],
            unit=PER_MINUTE,
        ),
        curves(
            "Sampled tokens of a request",
            "Half, and 95 % of requests sample at most so many.",
            [
                Query(vllm_quantile(0.5, "request_generation_tokens"), f"{OF_SERVER} half within"),
                Query(vllm_quantile(0.95, "request_generation_tokens"), f"{OF_SERVER} 95 % within"),
            ],
        ),
    ]
