"""What the preflight's checks cost, and how often they are wrong: `make bench-preflight`."""
