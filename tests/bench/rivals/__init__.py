"""Contenders: systems that run the stages of one workload, each in processes of its own.

`contract.Contender` is what a contender implements, `catalogue.CONTENDERS` lists all of them, and
`side_by_side` keeps several of them up at the same time. `systems` holds one module a contender.

Contenders of foreign systems run in an environment that has their packages and not the project's,
so the modules in here import the standard library, NumPy and psutil when they are loaded, and
everything else when it is used.
"""
