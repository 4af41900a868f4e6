"""What only real nodes show: cgroups, OOM kills, usage from the kernel, and our images as pods."""
