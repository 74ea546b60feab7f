"""What a user writes: the `spec` of both kinds."""
