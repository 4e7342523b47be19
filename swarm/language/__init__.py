"""Tokens of a language model whose layers lie on several nodes: sessions, turns, replays."""
