"""Language models: decoders whose stages keep the keys and values of their sessions."""
