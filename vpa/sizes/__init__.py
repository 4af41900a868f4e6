"""What a pod should look like: limits, caps, ranges, boosts, and the patches that say so."""
