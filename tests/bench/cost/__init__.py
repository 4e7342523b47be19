"""What the mesh costs: time of a hop, throughput, behaviour in overload, memory."""
