"""What it costs to replace weights while a stage serves, and whether any answer mixes two."""
