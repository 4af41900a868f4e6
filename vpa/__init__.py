"""Vertical Pod Autoscaler: the library."""
