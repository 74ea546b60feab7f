"""Pure functions over a run's records: measures, statistics and reports. No clock, no network, no process."""
