"""Compositions: several models and pure operators that answer one request."""
