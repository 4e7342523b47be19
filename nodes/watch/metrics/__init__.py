"""Figures for Prometheus: of one node, or of the whole fleet. Imported where asked for alone."""
