"""The dashboards as helm renders them."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from chart import FIRST_BUILD_S, ROOT, render

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]
FILES = sorted((ROOT / "charts/headway/files/dashboards").glob("*.json"))


def config_maps(**settings: Any) -> list[dict[str, Any]]:
    return render("dashboards.yaml", {"dashboards": {"enabled": True, **settings}}, "next", "next-system")


def test_each_file_is_a_config_map_that_the_sidecar_finds() -> None:
    made = config_maps()
    assert len(made) == len(FILES) == 4
    for found, file in zip(made, FILES, strict=True):
        assert found["kind"] == "ConfigMap"
        assert found["metadata"]["name"] == f"next-headway-dashboard-{file.stem}"
        assert found["metadata"]["namespace"] == "next-system"
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert "annotations" not in found["metadata"]
        assert found["data"] == {f"headway-{file.name}": file.read_text().rstrip("\n")}


def test_namespace_labels_and_folder_may_be_chosen() -> None:
    chosen = {
        "namespace": "monitoring",
        "labels": {"grafana_dashboard": None, "dashboards": "yes"},
        "annotations": {"grafana_folder": "Headway"},
    }
    for found in config_maps(**chosen):
        metadata = found["metadata"]
        assert metadata["namespace"] == "monitoring"
        assert metadata["labels"]["dashboards"] == "yes"
        assert "grafana_dashboard" not in metadata["labels"]
        assert metadata["annotations"] == {"grafana_folder": "Headway"}


def test_dashboards_are_made_only_if_asked_for() -> None:
    with pytest.raises(subprocess.CalledProcessError, match="non-zero") as refused:
        render("dashboards.yaml", {})
    assert "could not find template" in refused.value.stderr


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        config_maps(folder="Headway")
    assert "folder" in refused.value.stderr
