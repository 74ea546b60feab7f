"""`headway`, the command line; and the local engine, which runs a job's processes on one machine."""
