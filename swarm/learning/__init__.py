"""Learning: weight deltas between nodes, and the weight versions that they become. Pure."""
