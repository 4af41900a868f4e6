"""The real thing to test against: etcd, the control plane, fake nodes and a Metrics API on this machine.

Built from their Go modules once (`builds`), started on free ports (`cluster`). See README.md beside this
file.
"""
