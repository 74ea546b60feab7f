"""What the coordinator costs and gains: `make bench-rollout`."""
