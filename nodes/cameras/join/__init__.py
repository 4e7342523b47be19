"""Joined views: results of several edges, paired by when they were captured, and fused."""
