"""Who asked what, with which outcome: records in hash chains, on `swarm.<mesh>.audit.<agent>`."""
