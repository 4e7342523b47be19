"""The toy language models: their texts, their network, their training."""
