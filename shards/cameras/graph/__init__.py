"""A task inside its graph: the arithmetic before and behind a network, in standard operators."""
