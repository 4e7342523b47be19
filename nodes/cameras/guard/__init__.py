"""The guard: whether a picture is of the kind that this camera usually takes."""
