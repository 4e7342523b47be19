"""`nodes.console`, under the name by which the benchmarks still import it."""

from nodes.console import duration, err, guarded, out, print_json, report, with_mesh

__all__ = ["duration", "err", "guarded", "out", "print_json", "report", "with_mesh"]
