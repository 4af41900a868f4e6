"""Usage of the past from Prometheus: planned, loaded, checked, and attributed to workloads."""
