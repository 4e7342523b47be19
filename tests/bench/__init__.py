"""Benchmarks: what a hop costs, what a pipeline yields, what a fault costs, how the mesh grows.

Every figure is a ratio to a floor that was measured in the same run, slice by slice: absolute times
of two machines, or of two hours of one machine, cannot be compared. README.md says how to run each
benchmark. Only the command `swarm bench` imports this package, when it runs.

    commands                            the command line; imports a benchmark when it runs
    cost  faults  fleets  hostile       the benchmarks; simulations: those of tests/sim
    cameras  gateway  language  …       those of features, declared by their `feature`
    rivals                              systems that run the same stages
    report  paced                       the frame of every benchmark, figures, tables; the open loop
"""
