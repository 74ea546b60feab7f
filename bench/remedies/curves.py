"""Writes the curves of both jobs as JSON and as a drawing."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

from bench.remedies.job import Curve

COLOURS: Final = {"Alert": "tab:red", "Remediate": "tab:blue"}
DIGITS: Final = 5


def recorded(found: Mapping[str, Curve]) -> dict[str, Any]:
    """All recorded metrics, by policy."""
    return {
        policy: {
            "scores": curve.scores,
            "raised": curve.raised,
            "remedies": curve.remedies,
            "steps": {
                step: {name: round(value, DIGITS) for name, value in metrics.items()}
                for step, metrics in curve.steps.items()
            },
        }
        for policy, curve in found.items()
    }


def drawn(found: Mapping[str, Curve], title: str) -> str:
    """Held-out score and training reward by step, as SVG, with a line at each remedy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings: Any = {"svg.hashsalt": title, "svg.fonttype": "none"}
    with matplotlib.rc_context(settings):
        figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True)
        for policy, curve in found.items():
            colour = COLOURS[policy]
            steps = sorted(curve.scores)
            above.plot(
                steps,
                [curve.scores[s] for s in steps],
                marker="o",
                markersize=3,
                color=colour,
                label=f"policy: {policy}",
            )
            rewards = {s: f["rollout/reward/mean"] for s, f in sorted(curve.steps.items())}
            below.plot(list(rewards), list(rewards.values()), color=colour, linewidth=1)
            for entry in curve.remedies:
                for axes in (above, below):
                    axes.axvline(entry["step"], color=colour, linestyle=":", linewidth=1)
                above.text(entry["step"], 1.03, entry["remedy"], rotation=30, fontsize=8, color=colour)
        above.set(ylabel="held-out external score", ylim=(0, 1.02))
        below.set(xlabel="step", ylabel="training reward", ylim=(0, 1.02))
        above.legend(loc="lower right")
        for axes in (above, below):
            axes.grid(alpha=0.3)
        figure.suptitle(title)
        figure.tight_layout()
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"
