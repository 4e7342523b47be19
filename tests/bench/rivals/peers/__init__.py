"""`swarm bench peers`: the mesh beside what users would pick, on the same stages and payloads.

`runner.run_peers` measures, `environment.ensure_env` makes the interpreter of the foreign systems,
`summary` computes the medians and the table. Each measurement is a client process (`client`).
"""
