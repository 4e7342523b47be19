"""Whose bytes these are: one identity a node, one way of signing, one list of who is allowed.

`cryptography` is imported when the first key is made or read: a client that signs and verifies
nothing never loads it.
"""
