"""Turns chat completions into token ids: every turn of every agent passes here."""
