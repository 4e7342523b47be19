"""Splitting a language model at the ends of its layers, and proving it. On the splitter's side."""
