"""The commands of `headway`. Each module has one command, or a few related ones."""
