"""The Open Inference Protocol over HTTP, with Triton's binary extension."""
