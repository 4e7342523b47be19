"""Upgrades of the node software: a device goes to a signed release, or goes back."""
