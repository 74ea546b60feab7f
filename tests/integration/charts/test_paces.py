"""What a dashboard shows as the pace of a bill that falls, as Prometheus' own promtool computes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from chart import FIRST_BUILD_S, cluster_command

from headway_dashboards.promql import RATE, growth

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]
OF_A_JOB = 'kind="RLTrainingJob", namespace="red", job_name="a"'
SERIES = {"headway_job_cost": "1000+0.1x30 1002.9+0.1x30", "headway_usage_cost_usd": "1000+0.1x30 500+0.1x30"}
"""A bill that grows by 6 dollars an hour, and from which an amount is withdrawn after half an hour."""
WINDOW_MINUTES = 4
PACE = 6.0


@pytest.mark.parametrize("name", ["job/cost", "usage/cost_usd"])
def test_a_falling_bill_has_its_own_pace_or_no_pace(tmp_path: Path, name: str) -> None:
    expr = growth(name, "").replace(RATE, f"{WINDOW_MINUTES}m")
    labels = f"{{{OF_A_JOB}}}"
    shown = [
        {
            "expr": f"round({expr}, 0.01)",
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": labels, "value": PACE}],
        }
        for minute in (10, 29, 36, 60)
    ]
    none = [{"expr": expr, "eval_time": f"{minute}m", "exp_samples": []} for minute in (31, 33)]
    series = [{"series": f"{metric}{labels}", "values": values} for metric, values in SERIES.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": shown + none}
    (tmp_path / "paces.yaml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    command = [str(cluster_command("promtool")), "test", "rules", "paces.yaml"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
