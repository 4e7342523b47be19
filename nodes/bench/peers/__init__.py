"""The peer benchmark: the same model, stages and payloads on what users would pick.

``runner.run_peers`` measures, ``environment.ensure_env`` makes the interpreter for it,
``report.table`` draws the result; a contender implements ``base.Contender``. Only the runner's side
needs the project's own environment: the client processes import the workload, their contender and
nothing else, so nothing is imported here.
"""
