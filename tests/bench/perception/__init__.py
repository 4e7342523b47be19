"""What a camera's edge decides about frames: benchmarks on drawn scenes with known faces."""
