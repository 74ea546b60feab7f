"""Writes argocd/argocd-cm.yaml from argocd/health.lua: `python3 argocd_cm.py`."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

HERE = Path(__file__).resolve().parent
KINDS = ("RLEvalJob", "RLTrainingJob")
HEAD = """\
# Merge these keys into the ConfigMap that Argo CD has:
#
#   kubectl patch cm argocd-cm -n argocd --patch-file argocd-cm.yaml
#
# Made by argocd_cm.py from health.lua, which is the source.
apiVersion: v1
kind: ConfigMap
metadata:
  name: argocd-cm
  namespace: argocd
data:
"""


def config_map(script: str) -> str:
    """The ConfigMap, as YAML, with the health check once for each kind."""
    keys = (f"  resource.customizations.health.headway.dev_{kind}: |\n" for kind in KINDS)
    return HEAD + "".join(key + indent(script, "    ") for key in keys)


if __name__ == "__main__":
    text = config_map((HERE / "argocd" / "health.lua").read_text())
    (HERE / "argocd" / "argocd-cm.yaml").write_text(text)
