"""The operator: turns RLTrainingJobs and RLEvalJobs into pods, and keeps their statuses up to date."""
