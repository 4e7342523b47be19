"""Simulations of the gossip, of learning and of routing: worlds, scenarios, reports."""
