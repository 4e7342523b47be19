"""`swarm model quantize` where it takes language models' folders too."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.cli.command import seldom
from nodes.cli.model_split import ModelSource
from nodes.cli.options import Target
from nodes.quantize.commands.options import QuantizeFlags


@dataclass(frozen=True, kw_only=True)
class LanguageFlags(QuantizeFlags):
    """Of a folder, with a text; else those of a file."""

    rows: bool = seldom(
        False,
        "Of a language model's folder: products in 8 bits, a scale for each row, so that sessions "
        "keep their bits in any batch. Needs --text.",
    )
    text: str = seldom(
        "",
        "Of a language model's folder, with --rows or --weights-only: a text that the model was "
        "not made with; its cross-entropy is measured before and after, and kept.",
    )
    max_drop: float = seldom(
        0.01,
        "The accuracy that may be lost, 0.01 is a point of a hundred; without labels, the "
        "relative distance of the outputs; with --text, nats a token.",
        min=0.0,
    )


async def quantize(file: ModelSource, request: LanguageFlags, target: Target) -> int:
    """Make a model smaller and faster, and measure whether that pays and what it costs.

    Weights and features get 8 bits, unless another way is asked for. Exits with 1 where nothing was
    written."""
    if request.rows or request.text:
        from nodes.language.commands.quantize_language import run_quantize_language

        return await run_quantize_language(file, request, target)
    from nodes.quantize.commands import quantize as of_tensors

    return await of_tensors.quantize(file, request, target)
