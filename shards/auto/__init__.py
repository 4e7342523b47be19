"""Which layers run on which devices: cuts, places, replicas, for devices and links as they are."""
