"""The programs of the mesh: they bind `swarm` (messages) and `shards` (models)."""
