"""What a command has found and mended of what the mesh keeps at its server, for people."""

from __future__ import annotations

from typing import Any

from nodes.versions.upkeep import Upkept


def upkept_document(kept: Upkept) -> dict[str, Any]:
    """Fields of a command's JSON; none where nothing was wrong."""
    named = (("mended", kept.mended), ("flaws", kept.left))
    return {name: [flaw.document() for flaw in flaws] for name, flaws in named if flaws}


def upkept_lines(kept: Upkept) -> list[str]:
    """A line for each thing that was wrong."""
    mended = [f"mended: {flaw.title}: {flaw.text}" for flaw in kept.mended]
    return [*mended, *(f"still wrong: {flaw.line}" for flaw in kept.left)]
