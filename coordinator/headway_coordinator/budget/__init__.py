"""What a job may still use: worst cases, reservations for them, and who waits for free budget."""
