"""The rollout servers: which are in rotation, which weights they hold, and how they are called."""
