"""Commands of the feature `quantize`."""
