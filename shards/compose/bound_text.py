"""A composition's text with another number in one `choose`; comments and order stay."""

from __future__ import annotations

import re

from shards.compose.composition import composition_of, from_toml
from shards.compose.errors import CompositionError

_BOUND = re.compile(r"""\b(?:below|above)["']?\s*=\s*([+-]?[\w.+-]+)""")


def with_bound(text: str, part: str, bound: float) -> str:
    """text: TOML of a composition that has the `choose` part. Raises CompositionError where its
    number cannot be found."""
    before = from_toml(text)
    wanted = composition_of(_with_bound(before.source, part, bound)).to_json()
    if before.to_json() == wanted:
        return text
    for found in _BOUND.finditer(text):
        changed = text[: found.start(1)] + repr(bound) + text[found.end(1) :]
        try:
            if from_toml(changed).to_json() == wanted:
                return changed
        except CompositionError:
            continue  # such words stand in a comment or a text
    raise CompositionError(
        part, f"write the number {bound!r} by hand: it was not found in the file"
    )


def _with_bound(source: object, part: str, bound: float) -> dict[str, object]:
    assert isinstance(source, dict)
    parts = []
    for raw in source["part"]:
        if raw["name"] == part:
            key = "below" if "below" in raw["choose"] else "above"
            raw = {**raw, "choose": {**raw["choose"], key: bound}}
        parts.append(raw)
    return {**source, "part": parts}
