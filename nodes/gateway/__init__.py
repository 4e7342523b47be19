"""The gateway for HTTP and gRPC: clients of the Open Inference Protocol ask the mesh, unchanged."""
