"""What tests of several rooms share: waits, simulated time, processes."""
