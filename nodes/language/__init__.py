"""Serving a language model: sessions at the stages of this node, and answers to clients."""
