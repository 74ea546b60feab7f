"""The checks, one module each. `catalogue.CHECKS` has them in order."""
