"""Compositions on nodes: loaded, run, declared by commands."""
