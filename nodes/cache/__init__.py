"""Nodes of stage 1 that keep the answers of models that say so."""
