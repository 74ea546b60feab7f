"""What `make demo` and the end-to-end tests share: a cluster with Headway on it, a job, and its report."""
