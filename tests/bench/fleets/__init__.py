"""Fleets that grow, change their weights and versions, and lie behind slow links."""
