"""The real thing to test against: etcd, the Kubernetes control plane, kwok nodes and a Metrics API on this machine.

Built from their Go modules once (`builds`), started on free ports (`cluster`). See README.md beside this file.
"""
