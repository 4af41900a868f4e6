"""The doors to usage: Metrics API, Prometheus and what speaks its language."""
