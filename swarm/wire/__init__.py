"""What the bytes of a message mean: MessagePack, JSON, tensors, codecs, hops."""
