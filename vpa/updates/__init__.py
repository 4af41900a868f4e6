"""Which pods are changed, how, and when not: the parts of `vpa.disruptions`."""
