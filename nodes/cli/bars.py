"""One request's time as a bar for each hop, and the work inside of a run as a tree, for a
terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from swarm.tracing.anatomy import KINDS, Kind, TimePart
from swarm.tracing.inside import CUT, InnerWork, inside_of
from swarm.wire.hops import Hop

WIDTH = 48  # characters of the longest bar
SIGNS: dict[Kind, str] = {
    "outside": "·",
    "onward": "~",
    "lane": "░",
    "queue": "▒",
    "batch wait": "▓",
    "compute": "█",
}
LEGEND = {
    "outside": "to the first stage and back",
    "onward": "packing, sending, storing",
    "lane": "in the lane, and to the node",
    "queue": "behind other requests",
    "batch wait": "for company, or a free processor",
    "compute": "computing",
}


def bar_lines(parts: Sequence[TimePart], label: dict[str, str]) -> list[str]:
    """A line for each hop, and a legend of the parts that occur. label: of a node's id."""
    whole = sum(part.length for part in parts) or 1
    lines = []
    for (stage, node), group in groupby(parts, key=lambda part: (part.stage, part.node)):
        hop = list(group)
        name = f"stage {stage} {label.get(node, node)}" if node else "outside"
        total = sum(part.length for part in hop)
        lines.append(f"{name:<22.22} {total / 1e3:8.3f} ms  {_bar(hop, whole)}".rstrip())
        told = "  ".join(f"{part.kind} {part.length / 1e3:.3f}" for part in hop)
        lines.append(f"{'':<22} {told}")
    kinds = [kind for kind in KINDS if any(part.kind == kind for part in parts)]
    lines.append("  ".join(f"{SIGNS[kind]} {kind}: {LEGEND[kind]}" for kind in kinds))
    return lines


def inside_lines(hop: Hop, label: Mapping[str, str], deep: str = "") -> list[str]:
    """The work inside a hop's run: each piece below those that take its result, with its
    milliseconds, and below it the stages that it asked. label: of a node's id."""
    work = {piece.name: piece for piece in inside_of(hop)}
    read = {name for piece in work.values() for name in piece.reads}
    told: set[str] = set()
    lines = (
        [] if not work or deep else [f"inside stage {hop.stage} {label.get(hop.node, hop.node)}"]
    )
    for name in [name for name in work if name not in read] or list(work):
        lines += _tree(name, work, label, deep, told)
    if cut := hop.extra.get(CUT):
        lines.append(f"{deep}and {cut} more, which the hop has no room for")
    return lines


def _tree(
    name: str,
    work: Mapping[str, InnerWork],
    label: Mapping[str, str],
    deep: str,
    told: set[str],
) -> Iterator[str]:
    piece = work[name]
    if name in told:
        yield f"{deep + name:<26} (as above)"
        return
    told.add(name)
    about = ", ".join(
        key.replace("_", " ") if value is True else f"{key.replace('_', ' ')}: {value}"
        for key, value in piece.about.items()
    )
    yield f"{deep + name:<26} {piece.length / 1e3:8.3f} ms  {about}".rstrip()
    for ask in piece.asks:
        for hop in ask.hops:
            times = f"queue {hop.queue_us / 1e3:.3f}  compute {hop.compute_us / 1e3:.3f}"
            where = f"asks stage {hop.stage} {label.get(hop.node, hop.node)}"
            yield f"{deep}  {where:<{max(1, 24 - len(deep))}} {ask.length / 1e3:8.3f} ms  {times}"
            yield from inside_lines(hop, label, deep + "    ")
    for one in piece.reads:
        if one in work:
            yield from _tree(one, work, label, deep + "  ", told)


def nodes_of(hops: Sequence[Hop]) -> list[str]:
    """The nodes of these hops, and of those inside their runs."""
    inner = [
        hop for each in hops for piece in inside_of(each) for a in piece.asks for hop in a.hops
    ]
    return [hop.node for hop in hops] + (nodes_of(inner) if inner else [])


def _bar(parts: Sequence[TimePart], whole: int) -> str:
    """At least one character for each part: a short one shall be seen too."""
    return "".join(SIGNS[p.kind] * max(1, round(p.length / whole * WIDTH)) for p in parts)
