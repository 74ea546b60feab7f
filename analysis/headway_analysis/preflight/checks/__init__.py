"""The checks, a module each. `catalogue.CHECKS` has them in their order."""
