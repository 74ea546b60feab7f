"""The coordinator and the rollout servers: episodes, tokens, batches, the ledger."""
