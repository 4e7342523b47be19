"""Benchmarks: what a hop costs, what a pipeline yields, what a fault costs, how the mesh grows.

Every figure is a ratio to a floor that was measured in the same run, slice by slice: absolute times
of two machines, or of two hours of one machine, cannot be compared. README.md says how to run each
benchmark. Only the command `swarm bench` imports this package, when it runs.

    hop throughput scale overload peers faults sim      one benchmark each; they import none other
    contenders                                          systems that run the same stages
    report                                              figures, tables, charts, comparisons
"""
