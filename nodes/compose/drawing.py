"""The graph of a composition as a picture: its inputs at the left, each part behind those that it
reads, its outputs at the right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nodes.compose.telling import what_is
from shards.compose.composition import (
    AskPart,
    ChoosePart,
    Composition,
    FirstPart,
    from_json,
    needed,
)
from shards.compose.part import FILE, PART
from shards.manifest import Manifest
from swarm.errors import InvalidArgument

INPUTS, OUTPUTS = "", "."  # which no part is named
COLUMN, ROW, WIDTH, HEIGHT, EDGE = 230, 90, 170, 50, 30  # pixels
LONGEST = 26  # characters of a line that need not be narrowed
ASKS, COMPUTES, ENDS = "#dbe9f6", "#fdf1d5", "#e8e8e8"
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" text-anchor="middle">
<title>{title}</title>
<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">\
<path d="M0 0 L8 4 L0 8 z" fill="#777"/></marker></defs>
<rect width="100%" height="100%" fill="white"/>
"""

NO_TIMES: Mapping[str, str] = {}
Edge = tuple[str, str, str]  # from, to, what is said of it


def draw(
    manifest: Manifest,
    files: Mapping[str, Path],
    path: str,
    statuses: Sequence[Mapping[str, Any]] = (),
) -> bool:
    """Draw a version into an .svg; False where it is no composition. statuses: of nodes, whose
    longest time of each part is told. Raises `InvalidArgument` where
    the file cannot be written."""
    if PART.field not in manifest.parts:
        return False
    composition = from_json(files[FILE].read_bytes())
    try:
        Path(path).write_text(
            picture(
                composition, f"{manifest.model}@{manifest.version}", _times(manifest, statuses)
            ),
            encoding="utf-8",
        )
    except OSError as error:
        raise InvalidArgument(f"--plot {path}: {error}") from None
    return True


def _times(manifest: Manifest, statuses: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The median of each part in words, on the node where it is longest."""
    longest: dict[str, float] = {}
    for row in (row for status in statuses for row in status.get("compositions", ())):
        ms = row.get("ms", {}).get("p50", 0.0)
        if (row["model"], row["version"]) == (manifest.model, manifest.version) and ms:
            longest[row["part"]] = max(ms, longest.get(row["part"], 0.0))
    return {part: f"{ms:.3g} ms" for part, ms in longest.items()}


def picture(composition: Composition, title: str, times: Mapping[str, str] = NO_TIMES) -> str:
    """As SVG. times: of parts, in words."""
    places = placed(composition)
    lowest = min(y for _, y in places.values())
    at = {
        name: (EDGE + WIDTH / 2 + x * COLUMN, EDGE + HEIGHT + (y - lowest) * ROW)
        for name, (x, y) in places.items()
    }
    width = max(x for x, _ in at.values()) + WIDTH / 2 + EDGE
    height = max(y for _, y in at.values()) + HEIGHT / 2 + EDGE
    lines = [HEAD.format(width=int(width), height=int(height), title=escape(title))]
    for before, after, said in edges_of(composition):
        (x, y), (to_x, to_y) = at[before], at[after]
        x, to_x = x + WIDTH / 2, to_x - WIDTH / 2
        dash = ' stroke-dasharray="5 4"' if said else ""
        curve = f"M{x} {y} C{x + 30} {y} {to_x - 30} {to_y} {to_x} {to_y}"
        lines.append(f'<path d="{curve}" fill="none" stroke="#777"{dash} marker-end="url(#head)"/>')
        if said:
            where = f'x="{(x + to_x) / 2}" y="{(y + to_y) / 2 - 4}"'
            lines.append(f'<text {where} font-size="10" fill="#555">{escape(said)}</text>')
    for name, (x, y) in at.items():
        colour, *texts = _box(composition, name)
        texts[0] += f": {times[name]}" if name in times else ""
        place = f'x="{x - WIDTH / 2}" y="{y - HEIGHT / 2}" width="{WIDTH}" height="{HEIGHT}"'
        lines.append(f'<rect {place} rx="6" fill="{colour}" stroke="#444"/>')
        for line, text in enumerate(texts):
            size = f' textLength="{WIDTH - 8}" lengthAdjust="spacingAndGlyphs"'
            fits = size if len(text) > LONGEST else ""
            lines.append(f'<text x="{x}" y="{y - 4 + 16 * line}"{fits}>{escape(text)}</text>')
    return "\n".join([*lines, "</svg>\n"])


def placed(composition: Composition) -> dict[str, tuple[float, float]]:
    """Where each part is: how many it is behind the inputs, and its place among those beside it."""
    columns: dict[str, int] = {INPUTS: 0}

    def column(name: str) -> int:
        if name not in columns:
            before = map(column, needed(composition.parts[name]))
            columns[name] = 1 + max(before, default=columns[INPUTS])
        return columns[name]

    for name in composition.parts:
        column(name)
    columns[OUTPUTS] = 1 + max(columns.values())
    places: dict[str, tuple[float, float]] = {}
    for x in set(columns.values()):
        beside = [name for name, at in columns.items() if at == x]
        places |= {name: (x, (len(beside) - 1) / 2 - y) for y, name in enumerate(beside)}
    return places


def edges_of(composition: Composition) -> Iterator[Edge]:
    """Which reads which; of a choice, in which case."""
    for name, part in composition.parts.items():
        for before in dict.fromkeys(ref.part for ref in part.tensors()):
            yield before, name, ""
        match part:
            case ChoosePart():
                bound = f"{'<' if part.condition.below else '>'} {part.condition.bound:g}"
                yield part.then, name, f"{part.condition.measure} {bound}"
                yield part.otherwise, name, "else"
            case FirstPart():
                for one in part.of:
                    yield one, name, "the first"
    for before in dict.fromkeys(ref.part for ref in composition.outputs.values()):
        yield before, OUTPUTS, ""


def _box(composition: Composition, name: str) -> tuple[str, str, str]:
    """Its colour and its two lines."""
    if name == INPUTS:
        return ENDS, "inputs", ", ".join(spec.name for spec in composition.inputs)
    if name == OUTPUTS:
        return ENDS, "outputs", ", ".join(composition.outputs)
    part = composition.parts[name]
    if not isinstance(part, AskPart):
        return COMPUTES, name, what_is(part)
    rows = f", {part.most} rows" if part.each_row else ""
    return ASKS, name, f"{what_is(part)}{rows}{', optional' if part.optional else ''}"
