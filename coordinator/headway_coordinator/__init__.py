"""The coordinator of a job: episodes, tokens, batches, the ledger."""
