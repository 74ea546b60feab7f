"""What strangers' requests cost the gateway."""
