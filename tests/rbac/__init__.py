"""What each permission in deploy/manifests is for, shown by taking it away: ``make rbac-proof``."""
