"""Compositions beside the same models that a client asks one after the other by hand."""
