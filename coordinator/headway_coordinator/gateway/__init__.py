"""The gateway: translates chat completions into token ids. Every turn of every agent passes through it."""
