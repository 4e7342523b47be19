"""The mask: regions are filled on the device, or nothing leaves it."""
