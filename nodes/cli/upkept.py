"""What a command has found and mended of what the mesh keeps at its server, for people."""

from __future__ import annotations

from typing import Any

from nodes.versions.upkeep import Upkept


def upkept_document(kept: Upkept) -> dict[str, Any]:
    """Fields of a command's JSON; none where nothing was wrong."""
    named = (("mended", kept.mended), ("flaws", kept.left))
    document: dict[str, Any] = {
        n: [flaw.document() for flaw in flaws] for n, flaws in named if flaws
    }
    return document | ({"given_back": list(kept.given_back)} if kept.given_back else {})


def upkept_lines(kept: Upkept) -> list[str]:
    """A line for each thing that was wrong."""
    mended = [f"mended: {flaw.title}: {flaw.text}" for flaw in kept.mended]
    if kept.given_back:
        mended.append(f"given back, of versions that serve no longer: {', '.join(kept.given_back)}")
    return [*mended, *(f"still wrong: {flaw.line}" for flaw in kept.left)]
