"""Prometheus, and what speaks its language: Trickster, Thanos, Mimir, VictoriaMetrics, proxies."""
