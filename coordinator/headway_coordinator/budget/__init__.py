"""What a job may still use: worst cases, reservations for them, and the groups that wait for free budget."""
