from __future__ import annotations

import pytest

from headway_rollout import failures
from headway_rollout.engine import parse_adapters_in_use

NOT_LOADABLE = """\
(EngineCore pid=12) ERROR 11-21 09:00:00 [core.py:9] Traceback (most recent call last):
(EngineCore pid=12) ERROR 11-21 09:00:00 [core.py:9]   File "loader.py", line 3, in load
(EngineCore pid=12) ERROR 11-21 09:00:00 [core.py:9] ValueError: unsupported architecture Foo
(APIServer pid=11) RuntimeError: Engine core initialization failed. See root cause above.
""".splitlines()


def test_the_cause_is_reported_and_not_its_consequence() -> None:
    error = failures.before_ready(1, NOT_LOADABLE)
    assert error.permanent
    assert error.termination.reason == "ModelNotLoadable"
    assert error.termination.field == "spec.model.base"
    assert error.termination.message == f"ValueError: unsupported architecture Foo; {failures.LOADABLE}"


def test_pydantics_second_line_is_part_of_the_message() -> None:
    lines = [
        "(APIServer pid=11) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "(APIServer pid=11)   Value error, Model architectures ['Foo'] are not supported for now.",
        "(APIServer pid=11)     For further information visit a page",
    ]
    error = failures.before_ready(1, lines)
    assert error.permanent
    unsupported = "Model architectures ['Foo'] are not supported for now"
    assert error.termination.message.endswith(f"{unsupported}; {failures.LOADABLE}")


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 98] Address already in use",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
        "ValueError: Free memory on device (1/80 GiB) on startup is less than desired",
    ],
)
def test_a_failure_that_may_be_temporary_is_retriable(line: str) -> None:
    error = failures.before_ready(1, [line])
    assert not error.permanent
    assert error.termination.message == line


def test_a_killed_engine_is_retriable_and_names_the_signal() -> None:
    error = failures.before_ready(137, NOT_LOADABLE)
    assert not error.permanent
    assert "died of SIGKILL (killed)" in error.termination.message


def test_an_engine_that_dies_while_serving_is_retriable() -> None:
    error = failures.after_ready(1, ["KeyError: 'x'"])
    assert not error.permanent
    assert error.termination.reason == "EngineDied"
    assert "KeyError: 'x'" in error.termination.message


def test_output_without_an_exception_still_gives_a_message() -> None:
    assert "exit code 3" in failures.before_ready(3, ["hello"]).termination.message


def test_adapters_in_use_are_those_of_the_newest_series() -> None:
    metrics = "\n".join(
        [
            "# TYPE vllm:lora_requests_info gauge",
            'vllm:lora_requests_info{max_lora="4",running_lora_adapters="policy-0.1",'
            'waiting_lora_adapters=""} 1.5e+09',
            'vllm:lora_requests_info{max_lora="4",running_lora_adapters="policy-0.2,policy-0.3",'
            'waiting_lora_adapters="policy-0.4"} 1.7e+09',
        ]
    )
    assert parse_adapters_in_use(metrics) == {"policy-0.2", "policy-0.3", "policy-0.4"}


def test_no_series_means_no_adapter_in_use() -> None:
    assert parse_adapters_in_use("# nothing") == frozenset()


def test_a_model_that_fails_to_load_is_named_by_its_spec_field() -> None:
    error = failures.before_ready(
        1, ["ValueError: no such architecture"], "spec.candidates[tuned].checkpoint"
    )
    assert error.termination.field == "spec.candidates[tuned].checkpoint"
