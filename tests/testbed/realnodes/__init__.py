"""Real nodes: kubelet, containerd, runc, CNI and kube-proxy, each node in a box of namespaces of its own.

Nothing here touches this machine's network, its mounts or its files outside the cache and the run's folder.
"""
