"""The estimate of the whole job's usage and cost: made, stored and shown."""
