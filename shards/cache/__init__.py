"""Answers that are kept: by what they answer, within bounds of bytes and age."""
