"""What a model is for: how a picture becomes its input, and its outputs become results."""
