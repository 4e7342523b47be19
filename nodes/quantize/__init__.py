"""The feature `quantize` of the programs."""
