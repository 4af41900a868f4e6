"""Health, metrics endpoint, logging."""
