"""The command line: ``vpa …``."""
