"""Record what the lanes carry, and run it again off the serving path."""
