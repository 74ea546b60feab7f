"""All metrics, each defined once: its name, kind, unit and meaning.

Names under `training/`, `timing_s/`, `rollout/`, `analysis/`, `val/` and `eval/` are those of SageMaker MTRL.
So a dashboard made for it keeps working. The other names are Headway's own. MLflow gets each name unchanged,
and Prometheus gets `prometheus_name`. This module does not say how a number is computed.
"""

from typing import Final

from headway_api.metrics.definition import JOB_LABELS as JOB_LABELS
from headway_api.metrics.definition import OF_JOB as OF_JOB
from headway_api.metrics.definition import MetricFamily as MetricFamily
from headway_api.metrics.episodes import (
    ANALYSIS,
    EPISODES,
    EVALUATION,
    GIVEN_UP,
    ROLLOUT,
    TEST,
    by_task,
    measured,
)
from headway_api.metrics.operator import JOBS as JOBS
from headway_api.metrics.operator import OPERATOR
from headway_api.metrics.operator import SHARED_BUDGETS as SHARED_BUDGETS
from headway_api.metrics.platform import CONCURRENCY, SANDBOX, SPOOL, USAGE, WEIGHTS
from headway_api.metrics.training import OBJECTIVE, PREFLIGHT, REMEDIES, SIGNALS, STALENESS, TIMING, TRAINING

FAMILIES: Final = (
    *TRAINING,
    *TIMING,
    *ROLLOUT,
    *GIVEN_UP,
    *CONCURRENCY,
    *ANALYSIS,
    *measured("val", "in validation"),
    *by_task("val", "in validation"),
    *measured("test", "in the final test"),
    *by_task("test", "in the final test"),
    *TEST,
    *measured("eval", "in evaluation"),
    *EVALUATION,
    *OBJECTIVE,
    *STALENESS,
    *SIGNALS,
    *REMEDIES,
    *PREFLIGHT,
    *EPISODES,
    *USAGE,
    *SANDBOX,
    *WEIGHTS,
    *SPOOL,
    *OPERATOR,
    *SHARED_BUDGETS,
    *JOBS,
)


class UnknownMetricError(KeyError):
    """No family has a metric of this name. Define the family before you record the metric."""


def family(name: str) -> MetricFamily:
    """The family of a metric's name, such as `val/reward/pass_at_4`."""
    exact = _BY_NAME.get(name) or next((known for known in _PATTERNS if known.matches(name)), None)
    if exact is None:
        raise UnknownMetricError(f"no metric family is called {name!r}; define it in headway_api.metrics")
    return exact


def prometheus_name(name: str) -> str:
    """The name in Prometheus: `/` becomes `_`, prefixed `headway_`; a counter ends in `_total`."""
    suffix = "_total" if family(name).kind == "counter" else ""
    return "headway_" + name.replace("/", "_") + suffix


_BY_NAME: Final = {known.name: known for known in FAMILIES}
_PATTERNS: Final = tuple(known for known in FAMILIES if "{" in known.name)
