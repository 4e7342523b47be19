"""Local learning: a head trained on frozen features with the samples of this host."""
