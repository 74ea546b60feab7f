"""The rollout servers: who is in rotation, what weights they hold, how they are asked."""
