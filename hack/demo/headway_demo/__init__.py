"""Code that `make demo` and the end-to-end tests share: a cluster with Headway, a job, and its report."""
