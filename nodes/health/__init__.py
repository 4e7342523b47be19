"""Health for machines: what probes, a service manager and a container's check learn of a node."""
