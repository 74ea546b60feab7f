"""The verbs of `headway`, a module for each or for a few that belong together."""
