"""Requests that a node answers for clients: their lanes, and how objectives hold."""
