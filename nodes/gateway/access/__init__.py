"""Who may ask a gateway: keys, tokens, certificates; each is an agent of the mesh with a quota."""
