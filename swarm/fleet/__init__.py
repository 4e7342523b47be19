"""The nodes of a mesh: membership over NATS, what each advertises, the whole view."""
