"""Chat completions in, token ids out: every turn of every agent passes here."""
