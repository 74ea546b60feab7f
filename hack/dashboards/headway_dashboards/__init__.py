"""Grafana dashboards, made from the metric families of `headway_api.metrics` so that a rename breaks none."""
