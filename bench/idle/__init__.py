"""What jobs cost while nothing happens."""
