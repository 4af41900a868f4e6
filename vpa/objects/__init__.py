"""The Kubernetes objects that we read and write, as small msgspec structs of the fields we need."""
