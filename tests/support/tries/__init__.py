"""What strangers try on a cluster: programs that run in its pods, and how they get there."""
