"""Plans in force: which stages lie together, who fills which slot, when to plan anew. Pure."""
