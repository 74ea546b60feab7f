"""The sandbox: one episode's tools and state, on the standard library alone."""
