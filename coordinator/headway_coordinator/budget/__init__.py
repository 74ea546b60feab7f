"""What a job may still use: worst cases, what is reserved for them, and who waits for some to come free."""
