"""What a token costs, and what it costs when a stage is killed."""
