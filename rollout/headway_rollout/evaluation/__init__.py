"""Pure measures over episodes, and the driver that runs a validation."""
