"""Builds Headway's images: with Docker where an engine answers, else with mmdebstrap and buildah."""
