"""What a node does for the mesh beside its own requests: takeover, standby, judging, learning."""
