"""The versions on a node, kept in agreement with desired state: load, serve, drain."""
