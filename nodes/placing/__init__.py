"""Where each request of an edge is computed: all here, a part here, or all in the mesh. Pure."""
