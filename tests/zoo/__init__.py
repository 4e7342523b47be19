"""What the models of `shards.zoo` are trained with: networks in numpy, and their scripts."""
