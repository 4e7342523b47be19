"""What the gRPC server speaks: services and messages as `.proto` files, and their descriptors."""
