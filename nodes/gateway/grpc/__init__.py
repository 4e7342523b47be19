"""The Open Inference Protocol over gRPC, with Triton's messages."""
