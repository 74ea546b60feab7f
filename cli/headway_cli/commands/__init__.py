"""The verbs of `headway`: each module has one, or a few that belong together."""
