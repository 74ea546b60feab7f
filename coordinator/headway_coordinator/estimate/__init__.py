"""What the whole job will use and cost, as far as is known: made, kept and shown."""
