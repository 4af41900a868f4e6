"""The updater service."""
