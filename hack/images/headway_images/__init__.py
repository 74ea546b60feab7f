"""Builds Headway's images with Docker if an engine runs, and otherwise with mmdebstrap and buildah."""
