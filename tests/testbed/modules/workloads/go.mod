module testbed/workloads

go 1.26.0
