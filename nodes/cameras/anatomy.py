"""Where the milliseconds of a frame went. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm.wire.hops import Hop

BAR = 40  # characters


@dataclass(slots=True)
class Anatomy:
    """Moments of a frame, `time.monotonic()` in seconds; 0.0 where one has not come. decode:
    seconds, in the reader's thread. crops: seconds of the model that is asked about objects. hops:
    of the answer, which other nodes say."""

    captured: float
    decode: float
    taken: float = 0.0
    prepared: float = 0.0
    answered: float = 0.0
    read: float = 0.0
    drawn: float = 0.0
    hops: Sequence[Hop] = field(default_factory=tuple)
    crops: float = 0.0

    @property
    def whole_ms(self) -> float:
        """From the capture to the result, and to the picture where one is drawn."""
        return (max(self.drawn, self.read) - self.captured) * 1e3

    def parts(self) -> dict[str, float]:
        """Milliseconds by what they were spent on, in their order; they add up to the whole.
        `waited`: in the source, for a turn. `way`: between the nodes, and all else of the mesh."""
        prepared = self.prepared or self.taken
        answered = self.answered or prepared
        found = {
            "decode": self.decode,
            "waited": max(0.0, self.taken - self.captured - self.decode),
            "pre": prepared - self.taken,
        }
        mesh = answered - prepared
        told = 0.0
        for hop in self.hops:
            name = f"stage {hop.stage}" if hop.stage else "edge layers"
            seconds = max(0, hop.queue_us + hop.compute_us) / 1e6
            seconds = min(seconds, mesh - told)  # another node says it
            found[name] = found.get(name, 0.0) + seconds
            told += seconds
        if mesh:
            found["way"] = mesh - told
        found["post"] = max(0.0, self.read - answered - self.crops)
        if self.crops:
            found["crops"] = self.crops
        if self.drawn:
            found["draw"] = self.drawn - self.read
        return {name: round(seconds * 1e3, 3) for name, seconds in found.items()}


def explained(source: str, sequence: int, anatomy: Anatomy) -> str:
    """A frame as bars, for a terminal."""
    parts, whole = anatomy.parts(), anatomy.whole_ms
    lines = [f"frame {sequence} of {source}: {whole:.1f} ms from its capture to its result"]
    for name, ms in parts.items():
        bar = "█" * round(BAR * ms / whole) if whole > 0 else ""
        lines.append(f"  {name:<12}{ms:9.2f} ms  {bar}")
    lines.append(f"  {'sum':<12}{sum(parts.values()):9.2f} ms")
    return "\n".join(lines)
