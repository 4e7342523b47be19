"""What one contender's slice of a benchmark brought."""

from __future__ import annotations

from dataclasses import dataclass

from bench.report.figure import Better, percentile

KEYS: dict[str, Better] = {
    "token_p50_ms": "lower",
    "token_p99_ms": "lower",
    "first_p50_ms": "lower",
    "per_s": "higher",
}


@dataclass(frozen=True, slots=True)
class Run:
    """ids by session; seconds to the first tokens, between tokens, and of it all."""

    ids: list[list[int]]
    first: list[float]
    between: list[float]
    took: float

    def figures(self) -> dict[str, float]:
        """By `KEYS`."""
        return {
            "token_p50_ms": 1e3 * percentile(self.between, 0.5),
            "token_p99_ms": 1e3 * percentile(self.between, 0.99),
            "first_p50_ms": 1e3 * percentile(self.first, 0.5),
            "per_s": sum(map(len, self.ids)) / self.took,
        }
