"""New releases of the node software, on devices, by waves."""
