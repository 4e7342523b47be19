"""A second model for each object that a camera sees, asked only for objects that look new."""
