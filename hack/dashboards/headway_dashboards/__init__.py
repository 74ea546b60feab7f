"""Generates Grafana dashboards from the metric families of `headway_api.metrics`, so no rename breaks
them."""
