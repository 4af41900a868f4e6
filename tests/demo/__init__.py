"""What `make demo` shows: recommendations with explanations for workloads driven by public traces."""
